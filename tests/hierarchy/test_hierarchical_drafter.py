"""The promise with draft models: any stack, any plan, any settings, the same words; and what a stack is for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from threading import Event

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import NO_MATCH, DraftTree, Match
from hierchat.engine.engine import GenerationRequest
from hierchat.hierarchy.hierarchical_drafter import Ending, Level, merge
from hierchat.hierarchy.plan import Plan, Provenance
from tests.drafting.databases import paths_of
from tests.hierarchy import stacks
from tests.testing.tiny import CONTEXT, fresh_steps, random_tokens, tiny_engine, tokens_of

SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 0.8},
    "top-p": {"temperature": 1.5, "top_p": 0.8, "top_k": 20},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
    },
}
PLANS = [
    Plan((*levels, 3), tuple(2 + 3 * at for at in range(len(levels))), retrieval)
    for count in range(4)
    for levels in combinations(range(3), count)
    for retrieval in (True, False)
]
FEW = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def wanted(kind: str, tokens: int = 24, seed: int = 3) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=tokens, seed=seed, **SETTINGS[kind])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.levels}{'+' if plan.retrieval else ''}")
def test_every_plan_says_the_same_words(plan: Plan, kind: str) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted(kind)
    prompt = random_tokens(40, 5, vocabulary=12)
    vanilla = tokens_of(fresh_steps(engine, prompt, how))
    drafter = stacks.drafter(3, how, plan, retrieval=plan.retrieval, history=[vanilla[:12], prompt])
    assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla
    assert drafter.plan == plan


@FEW
@given(
    length=st.integers(1, 60),
    blocks=st.tuples(*[st.integers(1, 16)] * 3),
    kind=st.sampled_from(sorted(SETTINGS)),
    seed=st.integers(0, 10_000),
)
def test_any_blocks_any_prompt(length: int, blocks: tuple[int, ...], kind: str, seed: int) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted(kind, 32, seed)
    prompt = random_tokens(length, seed, vocabulary=12)
    vanilla = tokens_of(fresh_steps(engine, prompt, how))
    drafter = stacks.drafter(3, how, Plan((0, 1, 2, 3), blocks, True), history=[vanilla[5:20]])
    assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_plan_that_the_hierarchy_chooses(kind: str) -> None:
    """Over several replies, so that it learns and searches again."""
    engine, known = tiny_engine("llama-blocks"), stacks.hierarchy(3)
    for seed in range(4):
        how = wanted(kind, 60, seed)
        prompt = random_tokens(30, seed, vocabulary=12)
        vanilla = tokens_of(fresh_steps(engine, prompt, how))
        drafter = stacks.drafter(3, how, known=known, history=[prompt])
        assert tokens_of(fresh_steps(engine, prompt, how, drafter)) == vanilla
    assert known.found(50).plan.levels != (3,)  # models so much cheaper than the target take part


def test_a_stack_saves_forwards_of_the_target() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 64)
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


def test_every_level_stays_in_step_with_the_text() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("warm", 40)
    prompt = random_tokens(40, 5, vocabulary=12)
    engine.sequence.rollback(0)
    drafter = stacks.drafter(3, how, Plan((0, 1, 2, 3), (2, 4, 8), True), history=[prompt])
    text = list(prompt)
    for step in engine.generate(GenerationRequest(prompt, how, drafter)):
        text += step.tokens
        if step.tokens:
            for noise in stacks.NOISE:
                held = stacks.draft_target(noise).tokens
                assert held == text[: len(held)]


def test_the_second_reply_reads_only_what_is_new() -> None:
    engine, how = tiny_engine("llama-blocks"), wanted("greedy", 8)
    prompt = random_tokens(200, 5)
    target = stacks.draft_target(stacks.NOISE[0])
    target.rollback(0)
    reply: list[int] = []
    for _ in range(2):
        read: list[int] = []
        drafter = stacks.drafter(1, how, Plan((0, 1), (4,)), retrieval=False)
        original = target.read
        target.read = lambda tokens, read=read, original=original: (
            read.append(len(tokens)),
            original(tokens),
        )
        try:
            reply = tokens_of(fresh_steps(engine, prompt, how, drafter))
        finally:
            target.read = original
        prompt = [*prompt, *reply, *random_tokens(30, 6)]
    assert 20 <= sum(read) <= 45


@pytest.mark.parametrize("kind", SETTINGS)
def test_copies_of_the_target_take_over_what_it_has_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, how = tiny_engine("llama-blocks"), wanted(kind, 40)
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
    merged = merge(chain(1, 2, 3), tree((1, -1, 0.9), (2, 0, 0.8), (9, 1, 0.1)), 0.5, [0.01], 1.0, 10)
    assert merged.tokens[:3] == (1, 2, 3)
    assert paths(merged) == {(1,), (1, 2), (1, 2, 3), (1, 2, 9)}
    assert merged.sources == ("model", "model", "model", "history")


def test_a_branch_must_pay_for_its_row() -> None:
    branch = tree((5, -1, 0.4), (6, 0, 0.3))
    assert paths(merge(chain(1, 2), branch, 0.5, [0.1], 1.0, 10)) == {(1,), (1, 2), (5,), (5, 6)}
    assert paths(merge(chain(1, 2), branch, 0.99, [0.1], 1.0, 10)) == {(1,), (1, 2)}
    assert paths(merge(chain(1, 2), branch, 0.5, [1.2], 1.0, 10)) == {(1,), (1, 2)}


@st.composite
def branches_of(draw: st.DrawFn) -> DraftTree:
    """Best first: a node's probability is no more than its parent's, siblings' sum no more than it."""
    nodes: list[tuple[int, int, float]] = []
    left = {-1: 1.0}
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        chance = left[parent] * draw(st.floats(0.05, 0.95))
        token = draw(st.integers(0, 3))
        if any(p == parent and t == token for t, p, _ in nodes):
            token = 10 + node
        left[parent] -= chance
        left[node] = chance
        nodes.append((token, parent, chance))
    return tree(*nodes)


@given(
    branches_of(), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.floats(0.05, 0.99), st.floats(0, 1)
)
def test_it_is_a_tree(branches: DraftTree, tokens: list[int], accepted: float, cost: float) -> None:
    limit = len(tokens) + 4
    merged = merge(chain(*tokens), branches, accepted, [cost], 1.0, limit)
    assert merged.tokens[: len(tokens)] == tuple(tokens)
    assert len(merged) <= limit
    assert all(-1 <= parent < node for node, parent in enumerate(merged.parents))
    pairs = list(zip(merged.parents, merged.tokens, strict=True))
    assert len(set(pairs)) == len(pairs)  # no two siblings alike
    for node, parent in enumerate(merged.parents):
        above = merged.probabilities[parent] if parent >= 0 else 1.0
        assert merged.probabilities[node] <= above + 1e-9
    assert paths(merged) <= paths(branches) | paths(chain(*tokens))


def test_each_node_tells_what_it_was_found_by() -> None:
    found = [Match(1, length, 0, length) for length in range(3)]
    kept = DraftTree((1, 2), (-1, 0), ("history", "model"), matches=(found[0], NO_MATCH))
    beside = DraftTree((1, 9), (-1, 0), ("history",) * 2, (0.9, 0.5), matches=tuple(found[1:]))
    merged = merge(kept, beside, 0.5, [0.01], 1.0, 10)
    assert merged.tokens == (1, 2, 9)
    assert merged.matches == (found[0], NO_MATCH, found[2])


# Levels over scripted models: blocks, rollback, and that every level stays in step with what was committed.


END = 0


class Scripted:
    """Chooses by a rule over position and last token: models that agree often, not always."""

    def __init__(self, name: str, salt: int, room: int = 10_000) -> None:
        self.name, self._salt, self._room = name, salt, room
        self.text: list[int] = []
        self.forwards = 0
        self.read_ms = self.reading_ms = 0.0

    def choice(self, text: Sequence[int]) -> int:
        value = (31 * len(text) + 7 * text[-1] + sum(text[-3:])) % 23
        differs = (len(text) * 2654435761 + self._salt) % 100 < self._salt
        return 1 + (value + differs) % 23

    @property
    def length(self) -> int:
        return len(self.text)

    @property
    def room(self) -> int:
        return self._room - len(self.text)

    def begin(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        self.forwards += 1
        nodes = {pair: node for node, pair in enumerate(zip(drafts.parents, drafts.tokens, strict=True))}
        above, chosen = -1, []
        while True:
            token = self.choice(self.text)
            self.text.append(token)
            chosen.append(token)
            above = nodes.get((above, token), -2)
            if above == -2:
                return chosen

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        del self.text[length:]
        self.text += tokens


class Watch:
    def __init__(self) -> None:
        self.runs: list[tuple[int, bool]] = []
        self.looks: list[tuple[list[Provenance], int]] = []

    def forwarded(self, kept: int, bonus: bool, ms: float) -> None:
        self.runs.append((kept, bonus))

    def looked_at(self, kinds: Sequence[Provenance], accepted: int) -> None:
        self.looks.append((list(kinds), accepted))


def stack(
    salts: Sequence[int], blocks: Sequence[int], stop: Event | None = None
) -> tuple[list[Level], list[Watch]]:
    levels: list[Level] = []
    watches = [Watch() for _ in salts]
    for number, (salt, block) in enumerate(zip(salts, blocks, strict=True)):
        below = levels[-1] if levels else None
        model = Scripted(f"m{number}", salt)
        levels.append(Level(model, below, block, watches[number], Ending({END}, stop or Event())))
    return levels, watches


def decode(target: Scripted, highest: Level | None, prompt: list[int], tokens: int) -> list[int]:
    target.begin(prompt)
    if highest:
        highest.begin(prompt)
    while len(target.text) < len(prompt) + tokens:
        drafts = highest.propose() if highest else DraftTree()
        chosen = target.verify(drafts)
        if highest:
            highest.observe(chosen)
    return target.text[len(prompt) : len(prompt) + tokens]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(st.integers(1, 23), min_size=1, max_size=5),
)
def test_the_words_are_the_targets_and_all_levels_stay_in_step(
    settings: list[tuple[int, int]], prompt: list[int]
) -> None:
    levels, _ = stack(*zip(*settings, strict=True))
    plain = decode(Scripted("target", 0), None, prompt, 40)
    target = Scripted("target", 0)
    assert decode(target, levels[-1], prompt, 40) == plain
    for level in levels:
        assert isinstance(level.model, Scripted)
        assert level.model.text == target.text


def test_a_block_is_as_long_as_asked_for_and_says_how_its_tokens_came_about() -> None:
    levels, watches = stack([0, 0], [2, 5])
    levels[-1].begin([5, 6])
    block = levels[-1].propose()
    # The same model twice: 2 drafts and a bonus, twice, make at least 5.
    assert len(block) == 6
    assert block.parents == (-1, 0, 1, 2, 3, 4)
    assert block.sources == ("m0", "m0", "m1", "m0", "m0", "m1")
    assert watches[1].runs == [(2, True), (2, True)]
    levels[-1].observe([*block.tokens[:4], 22])
    assert watches[1].looks == [(["kept", "kept", "bonus", "kept", "kept", "bonus"], 4)]


def test_a_block_ends_with_the_reply() -> None:
    class Finite(Scripted):
        def choice(self, text: Sequence[int]) -> int:
            return END if len(text) == 5 else super().choice(text)

    level = Level(Finite("m", 0), None, 10, Watch(), Ending({END}, Event()))
    level.begin([5, 6])
    assert level.propose().tokens[-1] == END
    assert level.model.length == 6


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_than_there_is_room_for(limit: int) -> None:
    levels, _ = stack([0, 0], [4, 8])
    levels[-1].begin([5, 6])
    assert len(levels[-1].propose(limit)) <= limit
    small = Level(Scripted("m", 0, room=4), None, 10, Watch(), Ending({END}, Event()))
    small.begin([5, 6])
    assert len(small.propose()) == 1


def test_stops() -> None:
    stop = Event()
    levels, _ = stack([0, 0], [4, 8], stop)
    levels[-1].begin([5, 6])
    stop.set()
    assert len(levels[-1].propose()) == 0
    assert all(isinstance(level.model, Scripted) and level.model.forwards == 0 for level in levels)
