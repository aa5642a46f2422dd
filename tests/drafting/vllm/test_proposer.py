"""The drafter over a runner of vLLM's kind: the words stay, users stay apart, ends are noticed."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.draft_cost import RowCosts
from hierchat.drafting.vllm.custom_proposer import HierchatProposer
from tests.drafting.vllm.fake_runner import END, LONGEST, Engine, alone, config, recites

POEM = list(range(100, 160))
OTHER = list(range(200, 260))


def wandering(seed: int) -> Callable[[Sequence[int]], int]:
    """A target that often repeats itself: what follows depends on the last two tokens."""

    def target(text: Sequence[int]) -> int:
        mixed = (text[-1] * 31 + text[-2] * 17 + seed) % 97
        return END if mixed == 3 else 10 + mixed % 12

    return target


def test_each_reply_is_the_one_that_it_is_alone(engine: Engine) -> None:
    """Whatever comes and goes beside it, whether or not vLLM asks for drafts at a step. What the examples leave behind
    drafts for the next."""

    @settings(max_examples=40, deadline=None)
    @given(
        seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
        late=st.integers(0, 6),
        quiet=st.sets(st.integers(0, 30), max_size=6),
        most=st.integers(1, 70),
    )
    def together(seeds: list[int], late: int, quiet: set[int], most: int) -> None:
        asked = []
        for number, seed in enumerate(seeds):
            prompt = [50 + seed % 7, 60, *range(70, 70 + seed % 5), 11, 12]
            user = f"user {seed % 3}" if seed % 4 else ""
            asked.append(
                engine.ask(prompt, wandering(seed), most=most, pieces=seed % 3, user=user, reply=f"r{seed}")
            )
            for step in range(late if number % 2 else 0):
                engine.step(drafting=step not in quiet)
        step = 0
        while any(not one.finished for one in asked):
            engine.step(drafting=step not in quiet)
            step += 1
        engine.step()
        for one in asked:
            assert one.tokens == alone(one.prompt, one.target, most)

    together()
    assert max(engine.rows) > 5  # there were drafts


def steps_of(engine: Engine, prompt: Sequence[int], text: Sequence[int], **extra: object) -> int:
    """Forwards of one reply alone."""
    before = len(engine.rows)
    request = engine.ask(prompt, recites(text), **extra)
    engine.finish()
    assert request.tokens == [*text, END]
    engine.proposer._users.wait()
    return len(engine.rows) - before


def test_a_users_history_drafts_for_nobody_else(engine: Engine) -> None:
    """The same question again takes a few forwards, another user's as many as the first time."""
    first = steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")
    again = steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2")
    assert first > len(POEM)
    assert again < first / 3
    assert steps_of(engine, [5, 6, 7], POEM, user="ben", reply="1") == first
    assert steps_of(engine, [5, 6, 7], POEM) == first
    assert steps_of(engine, [5, 6, 7], POEM) == first  # who is not named leaves nothing behind


def test_a_reply_may_draft_and_not_be_learned(engine: Engine) -> None:
    first = steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1", learn=0)
    assert steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2") == first
    assert steps_of(engine, [5, 6, 7], POEM, user="ann", reply="3", learn=0) < first / 3


def test_no_more_drafts_than_asked_for(engine: Engine) -> None:
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")
    engine.rows.clear()
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2", drafts=0)
    assert max(engine.rows) == 1
    engine.rows.clear()
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="3", drafts=2)
    assert max(engine.rows) == 3


def test_what_was_aborted_is_not_learned(engine: Engine) -> None:
    request = engine.ask([5, 6, 7], recites(POEM), user="ann", reply="1")
    for _ in range(40):
        engine.step()
    engine.abort(request)
    engine.step()
    engine.proposer._users.wait()
    assert engine.proposer._figures({})["replies"] == 0
    assert engine.proposer._figures_of({"user": "ann", "reply": "1"})["state"] == "aborted"
    assert steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2") > len(POEM)


def test_replies_end_where_the_context_is_full(engine: Engine) -> None:
    request = engine.ask([5] * (LONGEST - 30), lambda text: 5, most=1000, user="ann", reply="1")
    engine.finish()
    assert len(request.tokens) == 30
    assert engine.proposer._figures_of({"user": "ann", "reply": "1"})["state"] == "ended"


def test_figures_add_up(engine: Engine) -> None:
    """Every token has a source, and every accepted draft was proposed."""
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="2")
    found = engine.proposer._figures_of({"user": "ann", "reply": "2"})
    steps = found["steps"]
    assert found["tokens"] == len(POEM) + 1 == sum(found["sources"].values())
    assert found["sources"]["target"] == len(steps) or steps[-1]["tokens"][-1] == END
    assert found["accepted"]["history"] == found["sources"]["history"] <= found["proposed"]["history"]
    assert found["tokens_per_forward"] == pytest.approx(len(POEM) / (len(steps) - 1))
    for step in steps:
        size = len(step["tokens"])
        assert size == len(step["sources"])
        assert size <= step["width"] == 1 + sum(step["proposed"].values())
    rest = engine.proposer._figures_of({"user": "ann", "reply": "2", "from": 2})
    assert (rest["first"], rest["next"]) == (2, len(steps))
    assert rest["steps"] == steps[2:]


def test_drafts_are_cut_as_the_batch_grows(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each row costs as much as a step of its own, many replies get few drafts each; one gets what it can."""
    engine = engines(sequences=64)
    prices = [1000.0] * 8 + [1000.0 + 500.0 * rows for rows in range(1, 505)]
    monkeypatch.setattr(RowCosts, "step_ms", lambda costs, context: prices)
    steps_of(engine, [5, 6, 7], POEM, user="ann", reply="1")

    def widest(replies: int) -> float:
        engine.rows.clear()
        for number in range(replies):
            engine.ask([5, 6, 7], recites(POEM), user="ann", reply=f"{replies} {number}", learn=0)
        engine.finish()
        return max(engine.rows) / replies

    assert widest(1) > 4
    assert widest(4) <= 3
    assert widest(16) < 1.5


def test_of_several_ranks_one_drafts(engines: Callable[..., Engine]) -> None:
    """The others keep no books and open no channel; whatever they are asked, they draft nothing."""
    second = HierchatProposer(config(rank=1, world=2))
    assert second.propose([[3], [4]], np.array([2, 2]), np.zeros((2, 9), np.int32)) == [[], []]
    assert second.channel is None
    second.close()
    first = engines(rank=0, world=2)
    assert first.proposer.channel is not None


def test_a_fault_of_ours_ends_no_reply(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = engine.ask([5, 6, 7], recites(POEM), user="ann", reply="1")
    for _ in range(5):
        engine.step()
    with monkeypatch.context() as broken:
        broken.setattr(engine.proposer._batch, "propose", lambda *rest: 1 / 0)
        engine.step()
    engine.finish()
    assert request.tokens == [*POEM, END]


def test_another_vllm_is_refused(vllm: ModuleType) -> None:
    vllm.__version__ = "0.33.1"  # type: ignore[attr-defined]
    assert sys.modules["vllm"] is vllm
    with pytest.raises(RuntimeError, match=r"made for vLLM 0\.32, and this is 0\.33\.1\. Install"):
        HierchatProposer(config())


def test_without_the_worker_class_there_is_a_sentence() -> None:
    alone = HierchatProposer(config())
    with pytest.raises(RuntimeError, match="--worker-cls"):
        alone.propose([[3]], np.array([2]), np.zeros((1, 9), np.int32))
    alone.close()


def test_tokens_that_the_model_does_not_have_are_not_drafted(engine: Engine) -> None:
    """A prompt may hold such, for an image: as a draft it would end the engine."""
    request = engine.ask([7, 900, 901, 8, 9] * 4, lambda text: 7, most=12, user="ann", reply="1")
    while not request.finished:
        engine.step()
        assert all(token < 500 for token in request.drafts)
