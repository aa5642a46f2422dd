"""Layers with a running state: the same bits in every forward. What they mean: test_hybrids.py."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.engine.cpu.memory import MOST_NODES, STEP
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Segment
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.formats.assemble import read_gguf
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.progress import silent
from tests.gguf_files.llama_logits import HYBRIDS
from tests.gguf_files.models import VOCABULARY, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.tiny import random_tokens, text_of, tokens_of
from tests.testing.tiny_files import tiny_tokenizer

LENGTH = 150
TEXT = random_tokens(LENGTH, seed=3, vocabulary=VOCABULARY)


@cache
def model_of(name: str) -> BlockModel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_family(name, tiny_module(name), path, tiny_tokenizer(("ab",)), packed=True)
        return read_gguf(path, gguf_config(read_head(path)), silent)


@pytest.fixture(scope="module", params=HYBRIDS)
def runner(request: pytest.FixtureRequest) -> Iterator[CpuRunner]:
    runner = CpuRunner(model_of(request.param), context_length=2 * LENGTH, sequences=3)
    yield runner
    runner.team.close()


def rows(sequence: CpuSequence, tokens: list[int], parents: list[int] | None = None) -> NDArray[np.float32]:
    """Logits of a tree, or of a chain."""
    found = sequence.forward(tokens, parents if parents is not None else range(-1, len(tokens) - 1))
    return np.array([found[node] for node in range(len(tokens))])


@cache
def plain(runner: CpuRunner) -> NDArray[np.float32]:
    """Logits of TEXT, token by token."""
    sequence = runner.open()
    found = []
    for token in TEXT:
        found.append(rows(sequence, [token])[0])
        sequence.commit([0])
    sequence.close()
    return np.array(found)


@pytest.mark.parametrize("size", [3, STEP, MOST_NODES])
def test_a_text_in_pieces(runner: CpuRunner, size: int) -> None:
    """Whether pieces are read as a prompt or decoded with logits."""
    assert runner.exact
    wanted = plain(runner)
    sequence = runner.open()
    for begin in range(0, LENGTH - 10, size):
        end = min(begin + size, LENGTH - 10)
        np.testing.assert_array_equal(rows(sequence, TEXT[begin:end]), wanted[begin:end])
        sequence.commit(range(end - begin))
    sequence.rollback(0)
    for begin in range(0, LENGTH - 10, size):
        sequence.read(TEXT[begin : min(begin + size, LENGTH - 10)])
    np.testing.assert_array_equal(rows(sequence, TEXT[-10:]), wanted[-10:])
    sequence.close()


def test_trees_and_texts_that_are_taken_back(runner: CpuRunner) -> None:
    """Random trees around the text, accepted in part, deeper than a chunk and across its border; random returns, near
    and far: what is beyond a snapshot is read again."""
    wanted, random = plain(runner), np.random.default_rng(4)
    sequence = runner.open()
    sequence.read(TEXT[:40])
    for _ in range(60):
        start = len(sequence.tokens)
        tokens, parents, right = list[int](), list[int](), list[int]()
        for token in TEXT[start : start + int(random.integers(1, 40))]:
            parents.append(right[-1] if right else -1)
            right.append(len(tokens))
            tokens.append(token)
            if len(tokens) < MOST_NODES and random.random() < 0.4:
                parents.append(int(random.integers(-1, len(tokens))))
                tokens.append(int(random.integers(0, VOCABULARY)))
            if len(tokens) == MOST_NODES:
                break
        np.testing.assert_array_equal(
            rows(sequence, tokens, parents)[right], wanted[start : start + len(right)]
        )
        sequence.commit(right[: int(random.integers(1, len(right) + 1))])
        if len(sequence.tokens) >= LENGTH - 1 or random.random() < 0.4:
            reach = 25 if random.random() < 0.7 else LENGTH
            goal = max(len(sequence.tokens) - int(random.integers(1, reach)), 0)
            sequence.rollback(goal)
            assert sequence.tokens == TEXT[: len(sequence.tokens)]
            assert len(sequence.tokens) <= goal
            if left := TEXT[len(sequence.tokens) : goal]:
                sequence.read(left)
    sequence.close()


def test_a_short_way_back_reads_nothing_again(runner: CpuRunner) -> None:
    """As a draft model goes back at every step."""
    sequence = runner.open()
    sequence.read(TEXT[:100])
    for token in TEXT[100:120]:
        rows(sequence, [token])
        sequence.commit([0])
    sequence.rollback(120 - STEP)
    assert len(sequence.tokens) == 120 - STEP
    np.testing.assert_array_equal(rows(sequence, TEXT[104:110]), plain(runner)[104:110])
    sequence.rollback(100)  # the end of the prompt: there is a snapshot
    assert len(sequence.tokens) == 100
    np.testing.assert_array_equal(rows(sequence, TEXT[100:110]), plain(runner)[100:110])
    sequence.close()


def test_going_back_to_any_length(runner: CpuRunner) -> None:
    """Nothing of the text that was taken back stays, in states or in records."""
    wanted, other = plain(runner), random_tokens(LENGTH, seed=8, vocabulary=VOCABULARY)
    sequence = runner.open()
    for length in range(20, 120, 11):
        for goal in range(1, length, 7):
            sequence.rollback(0)
            sequence.read(TEXT[:goal] + other[goal:length])
            sequence.rollback(goal)
            sequence.read(TEXT[len(sequence.tokens) : 50])
            sequence.rollback(min(goal + 20, 50))
            sequence.read(TEXT[len(sequence.tokens) : 100])
            np.testing.assert_array_equal(rows(sequence, TEXT[100:102]), wanted[100:102], f"{length}, {goal}")
    sequence.close()


def test_texts_share_a_forward(runner: CpuRunner) -> None:
    """Two replies and a piece of a prompt; a third text takes over what another has."""
    wanted = plain(runner)
    first, second, third = runner.open(), runner.open(), runner.open()
    first.read(TEXT[:50])
    second.read(TEXT[:93])
    found = runner.forward(
        [
            Segment(first, TEXT[50:53], (-1, 0, 1)),
            Segment(second, TEXT[93:95], (-1, 0)),
            Segment(third, TEXT[:60], range(-1, 59), logits=False),
        ]
    )
    np.testing.assert_array_equal(np.array([found[0][node] for node in range(3)]), wanted[50:53])
    np.testing.assert_array_equal(np.array([found[1][node] for node in range(2)]), wanted[93:95])
    third.commit(range(60))
    np.testing.assert_array_equal(rows(third, TEXT[60:64]), wanted[60:64])
    third.rollback(0)
    assert third.adopt(second, TEXT[:93])
    assert third.tokens == TEXT[:93]
    np.testing.assert_array_equal(rows(third, TEXT[93:99]), wanted[93:99])
    for sequence in (first, second, third):
        sequence.close()


def test_a_piece_that_was_not_committed(runner: CpuRunner) -> None:
    """Its states are ahead of its text: nothing is computed over them."""
    sequence = runner.open()
    sequence.read(TEXT[:30])
    sequence.rollback(30)
    runner.forward([Segment(sequence, TEXT[30:70], range(-1, 39), logits=False)])
    with pytest.raises(ValueError, match="not committed"):
        sequence.forward(TEXT[30:31], (-1,))
    sequence.rollback(30)
    held = len(sequence.tokens)
    sequence.read(TEXT[held:70])
    np.testing.assert_array_equal(rows(sequence, TEXT[70:72]), plain(runner)[70:72])
    sequence.close()


def test_a_broken_state_ends_one_reply(runner: CpuRunner) -> None:
    """The next one reads the text anew, and says the same words as before."""
    engine = LocalEngine(runner.open(), (), text_of)
    request = GenerationRequest(TEXT[:40], GenerationSettings(max_new_tokens=24))
    words = tokens_of(engine.generate(request))
    assert runner.states
    kinds = [kept for kept in (runner.states.running, runner.states.records) if kept.size]
    for broken in kinds:  # a short convolution has records alone
        broken[:] = np.nan
        longer = replace(request, prompt_ids=[*TEXT[:40], *words])
        with pytest.raises(BrokenLogits, match="weights are damaged"):
            list(engine.generate(longer))
        assert tokens_of(engine.generate(request)) == words
    engine.sequence.close()
