"""The decode loop: how a reply begins, stops and ends, and what its steps say."""

import threading
from collections import Counter
from itertools import count, pairwise
from typing import Any

import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import NO_MATCH
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.engine.generation import CHUNK, LONGEST_PARAGRAPH, PromptTooLong, is_looping
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.engine.drafters import Noise, Oracle
from tests.testing.tiny import fresh_steps, random_tokens, text_of, tiny_engine, tiny_target, tokens_of

PROMPT = random_tokens(300)
"""Read in three chunks."""


def reply_to(prompt: list[int], **settings: Any) -> list[int]:
    return tokens_of(fresh_steps(tiny_engine(), prompt, GenerationSettings(**settings)))


def drafters(reply: list[int]) -> list[Drafter | None]:
    return [None, Drafter(), Oracle(reply), Noise()]


# Stop


@pytest.mark.parametrize("drafter", [None, Noise()])
@pytest.mark.parametrize("after", [-1, 0, 2, 3, 4, 6])
def test_stop_is_heard_within_one_step_and_the_next_reply_is_as_ever(
    after: int, drafter: Drafter | None
) -> None:
    """Before the first step, at steps 0 to 3, which read the prompt, and at others, which decode."""
    engine, stop, settings = tiny_engine(), threading.Event(), GenerationSettings(max_new_tokens=10)
    steps: list[Step] = []
    if after < 0:
        stop.set()
    for step in engine.generate(GenerationRequest(PROMPT, settings, drafter, stop)):
        steps.append(step)
        if len(steps) == after + 1:
            stop.set()
    assert len(steps) == max(after, 0) + 2
    assert steps[-1].finish == "stopped"
    assert bool(tokens_of(steps)) == (after >= 4)
    assert steps[-1].prompt_read == min(CHUNK * max(after, 0), 299) + (after >= 4)
    assert engine.sequence.tokens == [*PROMPT, *tokens_of(steps)][: len(engine.sequence.tokens)]
    expected = tokens_of(engine.generate(GenerationRequest(PROMPT, settings)))
    assert expected == reply_to(PROMPT, max_new_tokens=10)


# Ends


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("at", [0, 8])
def test_an_accepted_run_is_cut_where_the_reply_ends(at: int, which: int) -> None:
    """By the limit, an end token, or a stop string."""
    prompt, reply = PROMPT[:20], reply_to(PROMPT[:20], max_new_tokens=20)
    string = text_of(reply[at : at + 3])
    for settings, ends, length, finish in (
        ({"max_new_tokens": at + 1}, (), at + 1, "length"),
        ({"max_new_tokens": 20}, {reply[at]}, reply.index(reply[at]) + 1, "end"),
        ({"max_new_tokens": 20, "stop": ("never", string)}, (), text_of(reply).index(string) + 3, "stop"),
    ):
        engine = tiny_engine(end_ids=ends)
        steps = fresh_steps(engine, prompt, GenerationSettings(**settings), drafters(reply)[which])
        assert tokens_of(steps) == reply[:length]
        assert steps[-1].finish == finish
        assert engine.sequence.tokens == [*prompt, *tokens_of(steps)][:-1]


def test_a_stop_string_is_looked_for_in_the_reply_alone_however_long_it_is() -> None:
    prompt = PROMPT[:20]
    reply = reply_to(prompt, max_new_tokens=60)
    across = text_of([prompt[-1], reply[0]])
    assert across not in text_of(reply)
    assert reply_to(prompt, max_new_tokens=10, stop=(across,)) == reply[:10]
    assert reply_to(prompt, max_new_tokens=60, stop=(text_of(reply[5:45]),)) == reply[:45]


@pytest.mark.parametrize("length", [1, 50, 62, 63])
def test_context_full(length: int) -> None:
    reply = reply_to(PROMPT[:length], max_new_tokens=65 - length)
    runner = tiny_target().runner
    small = TorchRunner(runner.model, context_length=64, quantum=runner.quantum, packed=False)
    engine = LocalEngine(small.open(), (), text_of)
    for drafter in drafters(reply):
        steps = fresh_steps(engine, PROMPT[:length], GenerationSettings(), drafter)
        assert tokens_of(steps) == reply[: 64 - length]
        assert steps[-1].finish == "context"
        assert max(step.width for step in steps) <= 64


def test_prompt_too_long() -> None:
    for length in (0, 512, 600):
        with pytest.raises(PromptTooLong, match=f"{length} tokens"):
            list(tiny_engine().generate(GenerationRequest(random_tokens(length), GenerationSettings())))


# Steps


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", [None, Drafter(), Noise(nodes=12)], ids=["none", "context", "noise"])
def test_what_steps_say(drafter: Drafter | None, temperature: float) -> None:
    wanted = GenerationSettings(max_new_tokens=20, temperature=temperature)
    steps = fresh_steps(tiny_engine(), PROMPT, wanted, drafter)
    assert [step.finish for step in steps] == [*[None] * (len(steps) - 1), "length"]
    assert all(before.prompt_read <= after.prompt_read for before, after in pairwise(steps))
    assert {step.prompt_tokens for step in steps} == {len(PROMPT)}
    assert steps[0].prompt_read == 0
    assert steps[-1].prompt_read == len(PROMPT)
    for step in steps:
        assert len(step.tokens) == len(step.sources)
        assert min(step.draft_ms, step.forward_ms, step.verify_ms) >= 0
        if step.tokens:
            assert step.width == 1 + sum(step.proposed.values())
            assert all(source != TARGET for source in step.sources[:-1])
            accepted = Counter(source for source in step.sources if source != TARGET)
            assert all(step.proposed[source] >= count for source, count in accepted.items())
        else:
            assert not step.proposed
            assert step.width <= CHUNK
    assert sum(step.width for step in steps if not step.tokens) == len(PROMPT) - 1
    if drafter is None:
        assert all(step.sources == (TARGET,) for step in steps if step.tokens)


# Measurements


def test_logit_gap() -> None:
    engine = tiny_engine()
    assert engine.measure_vanilla(GenerationSettings(temperature=0.8)) > 0
    assert engine.sequence.tokens == []  # measured over empty slots
    gap = engine.logit_gap(PROMPT, 3, 8)
    engine.sequence.rollback(len(PROMPT) - 1)
    row = engine.sequence.forward([PROMPT[-1]], [-1])[0]
    assert gap == engine.logit_gap(PROMPT, 8, 3) == abs(float(row[3]) - float(row[8]))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_accepted_tokens_tell_where_they_were_found(temperature: float) -> None:
    """A reply that history and its own beginning draft: there stand these tokens, behind those that matched."""
    chosen = GenerationSettings(max_new_tokens=30, temperature=temperature)
    reply = tokens_of(fresh_steps(tiny_engine(), PROMPT, chosen))
    history = Source.of([random_tokens(50, seed=3), [*PROMPT[-3:], *reply]])
    text = list(PROMPT)
    found = set()
    for step in fresh_steps(tiny_engine(), PROMPT, chosen, Drafter([history], width=8)):
        assert len(step.tokens) == len(step.matches) == len(step.chances)
        for token, source, match, chance in zip(
            step.tokens, step.sources, step.matches, step.chances, strict=True
        ):
            assert (source == TARGET) == (match == NO_MATCH) == (chance is None)
            if match.position >= 0:
                log = history.index.arrays.tokens.tolist() if match.database == 0 else text
                before = log[match.position - match.length : match.position]
                assert [*before, log[match.position]] == [*text[len(text) - match.length :], token]
                assert 0 < chance <= 1
                found.add(source)
            text.append(token)
    assert "history" in found


# Costs decide how much is drafted

REPEATED = random_tokens(20) * 3


def test_latency_learns_from_drafted_replies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    noted: list[tuple[int, int]] = []
    monkeypatch.setattr(engine.latency, "note", lambda width, context, ms: noted.append((width, context)))
    wanted = GenerationSettings(max_new_tokens=12)
    fresh_steps(engine, REPEATED, wanted)
    assert noted == []
    steps = [step for step in fresh_steps(engine, REPEATED, wanted, Drafter()) if step.tokens]
    before = [sum(len(step.tokens) for step in steps[:number]) for number in range(len(steps))]
    assert noted == [(step.width, len(REPEATED) + tokens) for step, tokens in zip(steps, before, strict=True)]


# Loops

BEFORE = list(range(1000, 1100))


def loop(period: int, tokens: int) -> list[int]:
    return [place % period for place in range(tokens)]


@pytest.mark.parametrize("period", [20, 21, 50, LONGEST_PARAGRAPH])
def test_the_same_tokens_three_times_in_a_row_are_a_loop(period: int) -> None:
    first = next(n for n in count(period) if is_looping(BEFORE + loop(period, n)))
    assert first == 3 * period


def test_what_is_said_twice_or_differs_is_no_loop() -> None:
    for period in (1, 2, 7):  # a row of zeros may be what was asked for
        assert not is_looping(BEFORE + loop(period, 200))
        assert is_looping(BEFORE + loop(period, 240))
    twice = loop(30, 60)
    numbered = [token for row in range(50) for token in (*range(9), 2000 + row)]
    for text in ([], [1], BEFORE, BEFORE + twice, numbered, loop(LONGEST_PARAGRAPH + 1, 1000)):
        assert not is_looping(text)
