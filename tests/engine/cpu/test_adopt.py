"""Keys and values that a rounded copy takes over from its original."""

from __future__ import annotations

import numpy as np
import pytest

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from tests.testing.tiny import CONTEXT, block_model, random_tokens, tiny_model


def target(kind: str = "llama") -> CpuSequence:
    return CpuRunner(block_model(tiny_model(kind)), context_length=CONTEXT).open()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "length"), [(0, 5), (0, CHUNK), (CHUNK - 2, CHUNK + 3), (50, 2 * CHUNK + 7), (9, 9)]
)
def test_it_goes_on_as_if_it_had_read_itself(read: int, length: int) -> None:
    text = random_tokens(length)
    one, other = target(), target()
    one.read(text)
    other.read(text[:read])
    other.adopt(one, text[read:])
    assert other.tokens == text
    block = random_tokens(6, 1)
    expected = one.forward(block, range(-1, 5))
    assert np.array_equal(np.asarray(other.forward(block, range(-1, 5))), np.asarray(expected))


def test_the_original_keeps_its_own() -> None:
    text = random_tokens(40)
    one, other = target(), target()
    one.read(text)
    before = np.asarray(one.forward([3], [-1])).copy()
    other.adopt(one, text[:30])
    other.read(random_tokens(20, 2))
    assert np.array_equal(np.asarray(one.forward([3], [-1])), before)


def test_another_text_or_shape_is_refused() -> None:
    one, other = target(), target()
    one.read([1, 2, 3])
    other.read([1, 2])
    for tokens in ([4], [3, 5]):
        assert not other.adopt(one, tokens)
    assert other.tokens == [1, 2]
    assert not target("qwen3").adopt(one, [1, 2, 3])
    assert other.adopt(one, ())  # it could
