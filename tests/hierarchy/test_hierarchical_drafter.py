"""The promise with draft models: any stack, any plan, any settings, the same words; and what a stack is for."""

from itertools import combinations
from threading import Event

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import NO_MATCH, DraftTree, Match, with_branches
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.engine.engine import GenerationRequest
from hierchat.hierarchy.plan import Plan
from tests.drafting.databases import paths_of
from tests.engine.test_contract import SETTINGS
from tests.hierarchy import stacks
from tests.testing.tiny import CONTEXT, fresh_steps, random_tokens, tiny_engine, tokens_of

KINDS = ("greedy", "warm", "top-p", "penalties")
STACKS = [(*levels, 3) for count in range(4) for levels in combinations(range(3), count)]


def wanted(kind: str, tokens: int = 24, seed: int = 3) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=tokens, seed=seed, **SETTINGS[kind])  # type: ignore[arg-type]


@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    stack=st.sampled_from(STACKS),
    lengths=st.tuples(*[st.integers(1, 16)] * 3),
    retrieval=st.booleans(),
    prompt=st.integers(1, 60),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
)
def test_every_plan_says_the_same_words(
    stack: tuple[int, ...], lengths: tuple[int, ...], retrieval: bool, prompt: int, kind: str, seed: int
) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted(kind, 24, seed)
    text, plan = random_tokens(prompt, seed, vocabulary=12), Plan(stack, lengths[: len(stack) - 1], retrieval)
    vanilla = tokens_of(fresh_steps(engine, text, how))
    drafter = stacks.drafter(3, how, plan, retrieval=retrieval, history=[vanilla[5:20], text])
    assert tokens_of(fresh_steps(engine, text, how, drafter)) == vanilla
    assert drafter.plan == plan


def test_the_plan_that_the_hierarchy_chooses() -> None:
    """Over several replies, so that it learns and searches again."""
    engine, known = tiny_engine("llama-blocks"), stacks.hierarchy(3)
    for seed, kind in enumerate(KINDS):
        how = wanted(kind, 60, seed)
        prompt = random_tokens(30, seed, vocabulary=12)
        vanilla = tokens_of(fresh_steps(engine, prompt, how))
        drafter = stacks.drafter(3, how, known=known, history=[prompt])
        assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla
    assert known.found(50).plan.levels != (3,)  # models so much cheaper than the target take part


def test_a_stack_saves_forwards_of_the_target() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 40)
    prompt = random_tokens(40, 5)
    drafter = stacks.drafter(3, how, Plan((0, 1, 2, 3), (2, 4, 8)), retrieval=False)
    steps = [step for step in fresh_steps(engine, prompt, how, drafter) if step.tokens]
    tokens = tokens_of(steps)
    assert len(tokens) / len(steps) > 3
    named = [source for step in steps for source in step.sources]
    assert {"draft2", "target"} <= set(named)  # the highest draft model's own tokens bear its name
    assert drafter.reply_ms > 0


def test_replies_up_to_the_end_of_the_context() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 100)
    prompt = random_tokens(CONTEXT - 20, 5)
    vanilla = fresh_steps(engine, prompt, how)
    drafter = stacks.drafter(3, how, Plan((0, 1, 2, 3), (4, 8, 16), True), history=[prompt])
    steps = fresh_steps(engine, prompt, how, drafter)
    assert tokens_of(steps) == tokens_of(vanilla)
    assert steps[-1].finish == vanilla[-1].finish == "context"


def test_the_second_reply_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 8)
    prompt = random_tokens(200, 5)
    target, reads = stacks.draft_target(stacks.NOISE[0]), list[int]()
    target.rollback(0)
    read = target.read
    monkeypatch.setattr(target, "read", lambda tokens: reads.append(len(tokens)) or read(tokens))
    for _ in range(2):
        reads.clear()
        drafter = stacks.drafter(1, how, Plan((0, 1), (4,)), retrieval=False)
        reply = tokens_of(fresh_steps(engine, prompt, how, drafter))
        prompt = [*prompt, *reply, *random_tokens(30, 6)]
    assert 20 <= sum(reads) <= 45


def test_copies_of_the_target_take_over_what_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("warm", 40)
    prompt = random_tokens(300, 5, vocabulary=12)
    vanilla = tokens_of(fresh_steps(engine, prompt, how))
    for noise in stacks.NOISE[:2]:
        draft = stacks.draft_target(noise)
        draft.rollback(0)
        monkeypatch.setattr(draft, "read", None)  # nothing is read twice
    drafter = stacks.drafter(
        2, how, Plan((0, 1, 2), (3, 9), True), history=[vanilla[5:20]], original=engine.sequence
    )
    assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla


def test_stopping_ends_a_block_at_once() -> None:
    engine, how, stop = tiny_engine("llama-blocks"), wanted("greedy", 200), Event()
    drafter = stacks.drafter(3, how, Plan((0, 1, 2, 3), (4, 8, 16)), retrieval=False, stop=stop)
    engine.sequence.rollback(0)
    steps = []
    for step in engine.generate(GenerationRequest(random_tokens(20), how, drafter, stop)):
        steps.append(step)
        if step.tokens:
            stop.set()
    assert steps[-1].finish == "stopped"
    assert steps[-1].width == 1  # no level wrote any more


def test_a_reply_that_ends_within_a_block() -> None:
    how = wanted("greedy", 60)
    prompt = random_tokens(40, 5)
    vanilla = tokens_of(fresh_steps(tiny_engine("llama-blocks"), prompt, how))
    end = vanilla[10]
    engine = tiny_engine("llama-blocks", [end])
    expected = tokens_of(fresh_steps(engine, prompt, how))
    drafter = stacks.drafter(2, how, Plan((0, 1, 2), (4, 16)), retrieval=False, end_ids=[end])
    assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == expected
    assert expected[-1] == end


def test_strong_matches_leave_the_models_out() -> None:
    """A text that the databases know by heart is not given to the models to write."""
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 100)
    prompt = random_tokens(40, 5)
    vanilla = tokens_of(fresh_steps(engine, prompt, how))
    known = stacks.hierarchy(1, priors={(0, 1): 0.5})
    shares = []
    for history in ([], [[*prompt, *vanilla]] * 3):
        drafter = stacks.drafter(1, how, known=known, history=history)
        steps = fresh_steps(engine, prompt, how, drafter)
        sources = [source for step in steps for source in step.sources]
        shares.append(np.mean([source == "history" for source in sources]))
    assert shares[0] == 0
    assert shares[1] > 0.5


def test_models_that_would_read_longer_than_they_save_do_not_take_part() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 16)
    prompt = random_tokens(400, 5)
    known = stacks.hierarchy(1, target_ms=1.3, priors={(0, 1): 0.9})
    stacks.draft_target(stacks.NOISE[0]).rollback(0)
    assert not known.worth_reading(Plan((0, 1), (1,)), 400, reading_ms=1e6)
    assert known.worth_reading(Plan((0, 1), (1,)), 400, reading_ms=-1e6)
    drafter = stacks.drafter(1, how, known=known)
    vanilla = tokens_of(fresh_steps(engine, prompt, how))
    assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla


# The target's tree: a chain, and branches that pay.


def chain(*tokens: int) -> DraftTree:
    return DraftTree(tokens, tuple(range(-1, len(tokens) - 1)), ("model",) * len(tokens))


def tree(*nodes: tuple[int, int, float]) -> DraftTree:
    """(token, parent, probability) each."""
    tokens, parents, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    return DraftTree(tokens, parents, ("history",) * len(nodes), chances)


def paths(drafts: DraftTree) -> set[tuple[int, ...]]:
    return set(paths_of(drafts))


def test_what_both_know_stands_once() -> None:
    merged = with_branches(chain(1, 2, 3), tree((1, -1, 0.9), (2, 0, 0.8), (9, 1, 0.1)), 0.5, [0.01], 1.0, 10)
    assert merged.tokens[:3] == (1, 2, 3)
    assert paths(merged) == {(1,), (1, 2), (1, 2, 3), (1, 2, 9)}
    assert merged.sources == ("model", "model", "model", "history")


def test_a_branch_must_pay_for_its_row() -> None:
    branch = tree((5, -1, 0.4), (6, 0, 0.3))
    assert paths(with_branches(chain(1, 2), branch, 0.5, [0.1], 1.0, 10)) == {(1,), (1, 2), (5,), (5, 6)}
    assert paths(with_branches(chain(1, 2), branch, 0.99, [0.1], 1.0, 10)) == {(1,), (1, 2)}
    assert paths(with_branches(chain(1, 2), branch, 0.5, [1.2], 1.0, 10)) == {(1,), (1, 2)}
    cut = with_branches(chain(1, 2), branch, 0.5, [0.1], 1.0, 3)
    assert (cut.tokens, cut.parents) == ((1, 2, 5), (-1, 0, -1))
    assert cut.probabilities == pytest.approx((0.5, 0.25, 0.2))  # 0.4 of what the chain leaves


def test_each_node_tells_what_it_was_found_by() -> None:
    found = [Match(1, length, 0, length) for length in range(3)]
    kept = DraftTree((1, 2), (-1, 0), ("history", "model"), matches=(found[0], NO_MATCH))
    beside = DraftTree((1, 9), (-1, 0), ("history",) * 2, (0.9, 0.5), matches=tuple(found[1:]))
    merged = with_branches(kept, beside, 0.5, [0.01], 1.0, 10)
    assert merged.tokens == (1, 2, 9)
    assert merged.matches == (found[0], NO_MATCH, found[2])


@pytest.mark.parametrize("more", [40, -8])
def test_a_padded_vocabulary_has_the_same_tokens(more: int) -> None:
    sequence, said = stacks.draft_target(stacks.NOISE[0]), list[list[int]]()
    for vocabulary in (sequence.vocabulary, sequence.vocabulary + more):
        reply = DraftedReply(wanted("greedy"), Event())
        model = CachedDraftModel("small", sequence, stacks.Costs(1.0), reply, vocabulary)
        model.begin([40, 0 if vocabulary == sequence.vocabulary else sequence.vocabulary + 3, 2])
        said.append([token for _ in range(20) for token in model.verify(DraftTree())])
    own, padded = said
    least = min(sequence.vocabulary, sequence.vocabulary + more)
    assert max(padded) < least
    other = next((at for at, token in enumerate(own) if token >= least), len(own))
    assert padded[:other] == own[:other]
