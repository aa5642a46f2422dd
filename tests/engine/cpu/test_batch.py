"""Many conversations at once: each gets the tokens that it gets alone."""

from __future__ import annotations

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.batch import Batch
from hierchat.engine.cpu.target import BlockTarget
from hierchat.engine.engine import Engine
from hierchat.models.block_types import pack
from tests.tiny import CONTEXT, block_model, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

SAMPLED = {"temperature": 0.8, "top_p": 0.9}


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest) -> BlockTarget:
    model = block_model(tiny_model(request.param), lambda floats: pack(floats, 8))
    return BlockTarget(model, context_length=CONTEXT, threads=2)


def alone(target: BlockTarget, prompt: list[int], settings: GenerationSettings) -> list[int]:
    return tokens_of(fresh_steps(Engine(target, (), text_of), prompt, settings))


def write(batch: Batch, asked: list[tuple[list[int], GenerationSettings]], streams: int) -> list[list[int]]:
    """All replies; a stream that has finished takes up the next prompt while the others go on."""
    replies: list[list[int]] = [[] for _ in asked]
    waiting, mine = list(range(len(asked))), dict[int, int]()
    while waiting or mine:
        for stream in range(streams):
            if stream not in mine and waiting:
                mine[stream] = waiting.pop(0)
                batch.start(stream, *asked[mine[stream]])
        for stream, token in batch.step():
            reply = replies[mine[stream]]
            reply.append(token)
            if len(reply) == asked[mine[stream]][1].max_new_tokens:
                batch.stop(stream)
                del mine[stream]
    return replies


@pytest.mark.parametrize("streams", [1, 3, 9])
def test_streams_of_any_length_get_the_tokens_of_plain_decoding(target: BlockTarget, streams: int) -> None:
    random = np.random.default_rng(streams)
    lengths = [1, 2, 126, 127, 128, 129, 300, *random.integers(1, 260, 9).tolist()]
    asked = [
        (
            random_tokens(length, number),
            GenerationSettings(
                seed=number,
                max_new_tokens=int(random.integers(1, 40)),
                **(SAMPLED if number % 3 == 0 else {}),
            ),
        )
        for number, length in enumerate(lengths)
    ]
    found = write(Batch(target, streams, CONTEXT), asked, streams)
    assert found == [alone(target, *one) for one in asked]


def test_a_second_turn_and_a_common_beginning_are_not_read_again(target: BlockTarget) -> None:
    settings = GenerationSettings(max_new_tokens=12, presence_penalty=1.0)
    begin = random_tokens(140)
    batch = Batch(target, 3, CONTEXT)
    batch.start(0, begin, settings)
    first = [token for _ in range(12) for _, token in batch.step()]
    assert first == alone(target, begin, settings)
    second, other = [*begin, *first, 5, 6, 7], [*begin[:135], 1, 2]
    forwards: list[int] = []
    plain = batch._forward
    batch._forward = lambda streams, tokens, logits: (  # type: ignore[method-assign, assignment]
        forwards.append(len(tokens)),
        plain(streams, tokens, logits=logits),
    )[1]
    batch.start(2, other, settings)
    batch.start(0, second, settings)
    batch.start(1, second, settings)
    assert forwards == [1, 3]  # all but the common beginning and what the step will read
    replies: list[list[int]] = [[], [], []]
    for _ in range(12):
        for stream, token in batch.step():
            replies[stream].append(token)
    assert replies[0] == replies[1] == alone(target, second, settings)
    assert replies[2] == alone(target, other, settings)


def test_a_full_stream_stops(target: BlockTarget) -> None:
    prompt, settings = random_tokens(250), GenerationSettings(max_new_tokens=99)
    batch = Batch(target, 2, 256)
    batch.start(1, prompt, settings)
    written = []
    while step := batch.step():
        written += step
    assert [token for _, token in written] == alone(target, prompt, settings)[:6]


def test_what_does_not_fit_is_refused(target: BlockTarget) -> None:
    with pytest.raises(ValueError, match="1 to 128 streams"):
        Batch(target, 129, CONTEXT)
    with pytest.raises(ValueError, match="context holds 512"):
        Batch(target, 1, CONTEXT + 1)
    batch = Batch(target, 1, 16)
    for prompt in ([], [1] * 16):
        with pytest.raises(ValueError, match=f"prompt of {len(prompt)} tokens"):
            batch.start(0, prompt, GenerationSettings())
