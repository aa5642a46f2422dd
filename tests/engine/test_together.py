"""Replies in progress that share their forwards: each is the one that it is alone, whatever the others do."""

from __future__ import annotations

import threading
import time
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.checks.verify import Noise
from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftCost, DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import Step
from hierchat.engine.generation import Decoding
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import TooManySequences
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import CONTEXT, Kind, block_model, random_tokens, text_of, tiny_model

PLACES = 4
RUNNERS = {
    kind: CpuRunner(
        block_model(tiny_model(kind), lambda floats: pack(floats, 8)),
        context_length=CONTEXT,
        threads=2,
        sequences=PLACES,
    )
    for kind in get_args(Kind)
}


@pytest.fixture(params=RUNNERS)
def engine(request: pytest.FixtureRequest):
    yield from _engine(request.param)


def _engine(kind: str):
    runner = RUNNERS[kind]
    made = LocalEngine(runner.open(), (), text_of, PLACES)
    yield made
    for sequence in {id(one): one for one in (*made._pool._free, *made._pool._taken)}.values():
        sequence.close()


def how(number: int, tokens: int = 40) -> GenerationSettings:
    sampled = {"temperature": 0.8, "top_p": 0.9} if number % 2 else {}
    return GenerationSettings(seed=number, max_new_tokens=tokens, **sampled)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def knowing(text: list[int], number: int):
    """Drafts of which some are right: trees of two kinds, or none at all."""
    if number % 3 == 2:
        return Noise(64, 6, seed=number)
    return Drafter([Source.of([text[2:12], text[9:30], random_tokens(8, number)])], width=9 - number)


def at_once(engine: LocalEngine, asked: list[tuple], padded: bool = True) -> list[list[Step]]:
    """Steps of replies that are asked for from a thread each: (prompt, settings, drafter)."""
    found: list[list[Step]] = [[] for _ in asked]
    errors: list[BaseException] = []
    ready = threading.Barrier(len(asked))

    def ask(user: int) -> None:
        prompt, settings, drafter = asked[user]
        ready.wait()
        try:
            for step in engine.generate(prompt, settings, drafter, padded=padded, user=user):
                found[user].append(step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(user,)) for user in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


@limits(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(sorted(RUNNERS)),
    lengths=st.lists(
        st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])), min_size=2, max_size=PLACES
    ),
    seed=st.integers(0, 99),
)
def test_each_reply_is_the_one_that_it_is_alone(kind: str, lengths: list[int], seed: int) -> None:
    """Greedy and sampled, prompts of any length, drafts of any kind; each ends when it is done."""
    for engine in _engine(kind):
        prompts = [random_tokens(length, seed + number) for number, length in enumerate(lengths)]
        settings = [how(number, 20 + 15 * number) for number in range(len(prompts))]
        alone = [
            tokens_of(list(engine.generate(prompt, one)))
            for prompt, one in zip(prompts, settings, strict=True)
        ]
        drafters = [knowing(reply, number) for number, reply in enumerate(alone)]
        found = at_once(engine, list(zip(prompts, settings, drafters, strict=True)))
        assert [tokens_of(steps) for steps in found] == alone
        assert [steps[-1].finish for steps in found] == ["length"] * len(prompts)


def test_they_share_forwards_and_drafts_share_rows(engine: LocalEngine) -> None:
    prompts = [random_tokens(20, number) for number in range(PLACES)]
    alone = [tokens_of(list(engine.generate(prompt, how(0, 60)))) for prompt in prompts]
    found = at_once(
        engine,
        [
            (prompt, how(0, 60), Drafter([Source.of([reply])], latency=engine.latency))
            for prompt, reply in zip(prompts, alone, strict=True)
        ],
    )
    shared = [step for steps in found for step in steps if step.together > 1]
    assert shared
    assert max(step.together for step in shared) <= PLACES
    assert [tokens_of(steps) for steps in found] == alone
    assert all(step.waited_ms >= 0 for steps in found for step in steps)


def test_a_long_prompt_is_read_in_pieces_between_the_steps_of_another(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one goes on while it is read."""
    done: list[str] = []

    def noted(name: str, what: str) -> None:
        method = getattr(Decoding, name)
        monkeypatch.setattr(
            Decoding, name, lambda *some, **more: (done.append(what), method(*some, **more))[1]
        )

    writing = engine.generate(random_tokens(5, 1), how(0, 200), user=1)
    for step in writing:
        if step.tokens:
            break
    for name, what in (("read_piece", "piece"), ("take_piece", "piece"), ("take", "step")):
        noted(name, what)
    reading = engine.generate(random_tokens(400, 2), how(0, 4), user=2)
    thread = threading.Thread(target=list, args=(reading,))
    thread.start()
    while len(engine._together._members) < 2 and thread.is_alive():
        time.sleep(0.001)  # else all may be written before there is a second one
    rest = list(writing)
    thread.join()
    assert rest[-1].finish == "length"
    assert tokens_of(rest)
    pieces = [at for at, what in enumerate(done) if what == "piece"]
    assert "step" in done[pieces[0] : pieces[-1]]


def test_a_reply_that_is_stopped_or_left_frees_its_place(engine: LocalEngine) -> None:
    for number in range(2 * PLACES):
        steps = engine.generate(random_tokens(30, number), how(number, 50), user=number)
        for step in steps:
            if step.tokens:
                break
        steps.close()
    stops = [threading.Event() for _ in range(PLACES)]
    steps = [
        engine.generate(random_tokens(9, number), how(0, 400), None, stops[number], user=number)
        for number in range(PLACES)
    ]
    for one in steps:
        next(one)
    with pytest.raises(TooManySequences, match="4 replies"):
        next(engine.generate(random_tokens(3, 1), how(0), user=9))
    for stop in stops:
        stop.set()
    assert [list(one)[-1].finish for one in steps] == ["stopped"] * PLACES
    assert tokens_of(list(engine.generate(random_tokens(3, 1), how(0, 5), user=9)))


class Broken(Drafter):
    """Fails at its third draft."""

    calls = 0

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        self.calls += 1
        if self.calls == 3:
            raise BrokenLogits("no numbers")
        return super().propose_beside(cost, limit)

    def propose(self, limit: int | None = None) -> DraftTree:
        return self.propose_beside(self.cost, limit)


def test_what_one_reply_raises_ends_no_other(engine: LocalEngine) -> None:
    prompts = [random_tokens(20, number) for number in range(3)]
    alone = tokens_of(list(engine.generate(prompts[0], how(0, 80))))
    found: list[list[int]] = []

    def fine() -> None:
        found.append(tokens_of(list(engine.generate(prompts[0], how(0, 80), user=1))))

    def broken() -> None:
        with pytest.raises(BrokenLogits):
            list(engine.generate(prompts[1], how(0, 80), Broken(), user=2))
        found.append([])

    threads = [threading.Thread(target=target) for target in (fine, broken)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[], alone]


def test_the_baseline_of_several_is_measured_of_all_together(engine: LocalEngine) -> None:
    steps = [engine.generate(random_tokens(9, number), how(0, 60), user=number) for number in range(2)]
    for one in steps:
        while not next(one).tokens:
            pass
    expected = [list(engine._together._members[number].reply.sequence.tokens) for number in range(2)]
    assert engine.measure_vanilla(how(0), forwards=1) > 0
    assert [member.reply.sequence.tokens for member in engine._together._members] == expected
    for one in steps:
        list(one)


def test_a_piece_of_a_prompt_goes_along_with_the_steps_of_another(engine: LocalEngine) -> None:
    """Both share forwards: of the piece no logits are computed."""
    forwards: list[list[bool]] = []
    runner = engine.runner
    whole = runner.forward
    runner.forward = lambda blocks, **how: (
        forwards.append([one.logits for one in blocks]) or whole(blocks, **how)
    )  # type: ignore[method-assign]
    try:
        writing = engine.generate(random_tokens(5, 1), how(0, 60), user=1)
        began = [next(step for step in writing if step.tokens)]
        reading = engine.generate(random_tokens(300, 2), how(1, 10), user=2)
        other = [next(reading)]  # it is among the replies in progress from here on
        thread = threading.Thread(target=lambda: other.extend(reading))
        thread.start()
        mine = [*began, *writing]
        thread.join()
    finally:
        del runner.forward  # type: ignore[method-assign]
    assert [True, False] in forwards
    assert tokens_of(mine) == tokens_of(list(engine.generate(random_tokens(5, 1), how(0, 60))))
    assert tokens_of(other) == tokens_of(list(engine.generate(random_tokens(300, 2), how(1, 10))))
    pieces = [step for step in other if step.width and not step.tokens]
    assert sum(step.width for step in pieces) == 299
    assert all(step.forward_ms > 0 for step in pieces)
