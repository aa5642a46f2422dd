"""Hidden states of committed positions: for a proposer that asks, and no other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence, Segment
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import CONTEXT, block_model, random_tokens, text_of, tiny_model


class Reader(Drafter):
    """The databases; it keeps what it sees."""

    reads_hidden = True

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__(width=6)
        self.reads_hidden = reads
        self.seen: list[NDArray[np.float32]] = []
        self.committed: list[int] = []

    def see(self, hidden: NDArray[np.float32]) -> None:
        self.seen.append(hidden.copy())

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        self.committed += tokens


@pytest.fixture(params=["cpu", "torch"])
def sequence(request: pytest.FixtureRequest) -> CachedSequence:
    model = tiny_model("llama")
    if request.param == "torch":
        return TorchRunner(model, context_length=CONTEXT).open()
    blocks = block_model(model, lambda floats: pack(floats, 8))
    return CpuRunner(blocks, context_length=CONTEXT, threads=1, sequences=2).open()


def head_of(sequence: CachedSequence) -> NDArray[np.float32]:
    runner = sequence.runner
    if isinstance(runner, CpuRunner):
        return runner.model.head.floats(np.arange(runner.vocabulary))
    assert isinstance(runner, TorchRunner)
    head = runner.model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return (tiny_model("llama").get_output_embeddings().weight if weight is None else weight).detach().numpy()


def test_they_are_what_the_head_reads(sequence: CachedSequence) -> None:
    sequence.read(random_tokens(9))
    rows = sequence.forward((3, 4, 5), (-1, 0, 0))
    hidden = rows.hidden((0, 2))
    assert hidden is not None
    expected = np.array([rows[0], rows[2]])
    assert np.abs(hidden @ head_of(sequence).T - expected).max() < 2e-2 * np.abs(expected).max()
    assert rows.kept().hidden((0,)) is None


def test_each_sequence_of_a_forward_has_its_own(sequence: CachedSequence) -> None:
    runner = sequence.runner
    if runner.most_sequences < 2 or not isinstance(runner, CpuRunner):
        pytest.skip("one sequence at a time")
    other = runner.open()
    sequence.read(random_tokens(9))
    other.read(random_tokens(5, seed=2))
    alone = sequence.forward((3, 4), (-1, 0)).hidden((1,))
    assert alone is not None
    alone = alone.copy()
    together = runner.forward([Segment(other, (1,), (-1,)), Segment(sequence, (3, 4), (-1, 0))])
    found = together[1].hidden((1,))
    assert found is not None
    assert np.array_equal(found, alone)


@pytest.mark.parametrize("reads", [True, False])
def test_a_proposer_sees_one_for_each_committed_token(sequence: CachedSequence, reads: bool) -> None:
    engine, prompt = LocalEngine(sequence, (), text_of), random_tokens(12)
    settings = GenerationSettings(max_new_tokens=20)
    reader = Reader(reads=reads)
    tokens = [
        token
        for step in engine.generate(GenerationRequest(prompt, settings, reader))
        for token in step.tokens
    ]
    assert reader.committed == tokens
    if not reads:
        assert reader.seen == []
        return
    states = np.concatenate(reader.seen)
    assert len(states) == len(tokens)
    best = (states @ head_of(sequence).T).argmax(axis=1)
    assert (best == tokens).mean() > 0.9  # rounding may turn a tie
