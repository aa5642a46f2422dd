"""Several sequences of one runner: each gets the tokens that it gets alone, whatever the others do."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.generation import Detokenizer, Generation, GenerationRequest, step_batch
from hierchat.engine.runner import Segment, TooManySequences
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import CONTEXT, Kind, block_model, random_tokens, text_of, tiny_model

RUNNERS = {
    kind: CpuRunner(
        block_model(tiny_model(kind), lambda floats: pack(floats, 8)),
        context_length=CONTEXT,
        threads=2,
        sequences=4,
    )
    for kind in get_args(Kind)
}
SAMPLED = {"temperature": 0.8, "top_p": 0.9}


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> CpuRunner:
    return RUNNERS[request.param]


def settings(number: int, tokens: int) -> GenerationSettings:
    return GenerationSettings(seed=number, max_new_tokens=tokens, **(SAMPLED if number % 2 else {}))


def drafter(text: list[int], width: int) -> Drafter:
    """Databases that know the reply in part: some drafts are right, and some are wrong."""
    return Drafter([Source.of([text[3:9], text[12:20], random_tokens(8, seed=len(text))])], width=width)


def alone(runner: CpuRunner, prompt: list[int], how: GenerationSettings) -> list[int]:
    sequence = runner.open()
    try:
        reply = Generation(sequence, GenerationRequest(prompt, how), Detokenizer(text_of))
        assert [step.finish for step in reply.read()][-1] is None
        tokens: list[int] = []
        while reply.finish is None:
            tokens += step_batch(runner, [reply])[0].tokens
        return tokens
    finally:
        sequence.close()


@limits(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(RUNNERS)),
    lengths=st.lists(
        st.one_of(st.integers(1, 40), st.sampled_from([126, 127, 128, 129, 300])), min_size=2, max_size=4
    ),
    seed=st.integers(0, 99),
)
def test_replies_that_share_forwards_are_those_that_each_gets_alone(
    kind: str, lengths: list[int], seed: int
) -> None:
    """Trees included, greedy and sampled; replies arrive one after the other and leave when they are done."""
    runner = RUNNERS[kind]
    prompts = [random_tokens(length, seed + number) for number, length in enumerate(lengths)]
    how = [settings(number, 8 + 7 * number) for number in range(len(prompts))]
    expected = [alone(runner, prompt, one) for prompt, one in zip(prompts, how, strict=True)]

    found: list[list[int]] = [[] for _ in prompts]
    waiting = list(range(len(prompts)))
    writing: dict[int, Generation] = {}
    widths = set[int]()
    while waiting or writing:
        if waiting:
            number = waiting.pop(0)
            drafts = drafter(expected[number], 2 + 3 * number)
            reply = Generation(
                runner.open(), GenerationRequest(prompts[number], how[number], drafts), Detokenizer(text_of)
            )
            for _ in reply.read():
                pass
            writing[number] = reply
        steps = step_batch(runner, list(writing.values()))
        for number, step in zip(list(writing), steps, strict=True):
            found[number] += step.tokens
            widths.add(step.width)
            if writing[number].finish:
                writing.pop(number).sequence.close()
    assert found == expected
    assert len(widths) > 1  # blocks of different widths went through one forward


def test_rows_of_blocks_of_any_width_keep_their_bits(runner: CpuRunner) -> None:
    starts, trees = (5, 130, 127), ((-1, 0, 0, 2), (-1,), (-1, 0, 1, 1, 0, 4, 5))
    sequences = [runner.open() for _ in starts]
    try:
        blocks = []
        for number, (sequence, start, tree) in enumerate(zip(sequences, starts, trees, strict=True)):
            sequence.read(random_tokens(start, number))
            blocks.append(Segment(sequence, random_tokens(len(tree), number + 9), tree))
        expected = [np.array(block.sequence.forward(block.tokens, block.parents)) for block in blocks]
        for order in ((0, 1, 2), (2, 1, 0), (1, 2)):
            together = runner.forward([blocks[number] for number in order])
            for number, rows in zip(order, together, strict=True):
                np.testing.assert_array_equal(np.asarray(rows), expected[number])
    finally:
        for sequence in sequences:
            sequence.close()


def test_a_sequence_takes_over_what_another_has_read(runner: CpuRunner) -> None:
    one, other = runner.open(), runner.open()
    text = random_tokens(200)
    try:
        one.read(text)
        other.read(text[:20])
        assert other.adopt(one, text[20:150])
        assert other.tokens == text[:150]
        one.rollback(150)
        expected = np.array(one.forward([7], [-1]))
        np.testing.assert_array_equal(np.asarray(other.forward([7], [-1])), expected)
        assert not other.adopt(one, [1])  # one has not read that
    finally:
        one.close()
        other.close()


def test_no_more_sequences_than_there_are_slots(runner: CpuRunner) -> None:
    held = [runner.open() for _ in range(4)]
    with pytest.raises(TooManySequences, match="4 sequences"):
        runner.open()
    held.pop().close()
    held.append(runner.open())
    assert held[-1].tokens == []
    for sequence in held:
        sequence.close()
