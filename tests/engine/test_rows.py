"""Rows of a forward: fetched from a device once, their likeliest tokens and hidden states told to who asks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cuda.cuda_runner import CudaRunner, DeviceRows, ForwardResult
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence
from hierchat.engine.sampling.sampler import BLOCK, BrokenLogits, Counts, top_tokens
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.engine.verification import ArrayRows, Sampler, verify
from hierchat.models.formats.blocks import pack
from tests.engine.drafters import Buried
from tests.testing import tiny
from tests.testing.tiny import CONTEXT, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

LOGITS = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)


class Device:
    """Counts what is asked of it."""

    def __init__(self, logits: np.ndarray = LOGITS) -> None:
        self.logits = logits
        self.asked: list[str] = []

    def rows(self, before: DeviceRows | None = None) -> DeviceRows:
        logits = torch.from_numpy(self.logits)
        best = torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)
        expected = before._result.asked if before else ()
        result = ForwardResult(self, (logits, best, logits), False, expected)  # type: ignore[arg-type]
        return DeviceRows(result, 0, len(logits))

    def fetch_rows(self, numbers: torch.Tensor) -> np.ndarray:
        width = numbers.numel() // len(self.logits)
        self.asked.append({1: "best", 50: "logits"}.get(width, f"{width} numbers"))
        return numbers.numpy().copy()

    def top(self, logits: torch.Tensor, count: int) -> torch.Tensor:
        return logits.argsort(dim=1, descending=True)[:, :count].to(torch.int32)


SETTINGS = {
    "greedy": GenerationSettings(),
    "sampled": GenerationSettings(temperature=0.9, seed=3),
    "penalised": GenerationSettings(repetition_penalty=1.3),
    "biased": GenerationSettings(logit_bias={7: 9.0}),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_choice_is_that_of_an_array_and_costs_one_question(kind: str) -> None:
    wanted, device = SETTINGS[kind], Device()
    drafts = DraftTree(tuple(LOGITS.argmax(axis=1)[:3].tolist()), (-1, 0, 1))
    expected = verify(ArrayRows(LOGITS), drafts, 9, Sampler(wanted, Counts([3])))
    rows, sampler = device.rows(), Sampler(wanted, Counts([3]))
    sampler.wait_for(rows)
    assert len(device.asked) == 1
    assert verify(rows, drafts, 9, sampler) == expected
    assert device.asked == ["best" if kind == "greedy" else "logits"]
    if kind == "greedy":
        assert len(expected[1]) == 4


def test_what_the_rows_before_were_asked_for_comes_in_one_copy() -> None:
    device, before = Device(), None
    for number in range(3):
        rows = device.rows(before)
        rows.wait(best=True)
        best = [rows.best(node) for node in range(4)]
        assert rows.likeliest([2, 0], 3)[:, 0].tolist() == [best[2], best[0]]
        assert np.array_equal(rows.hidden([1]), LOGITS[1:2])
        assert len(device.asked) == 1 + number
        before = rows
    assert device.asked[1:] == ["54 numbers"] * 2
    rows = device.rows(before)
    assert np.array_equal(rows[3], LOGITS[3])
    assert device.asked[3:] == ["104 numbers"]
    assert np.array_equal(rows.hidden([1]), LOGITS[1:2])
    assert rows.likeliest([1], 3)[0, 0] == best[1]


@pytest.mark.parametrize("kind", SETTINGS)
def test_broken_weights_are_an_error(kind: str) -> None:
    broken = LOGITS.copy()
    broken[1, 5] = np.nan
    rows = Device(broken).rows()
    sampler = Sampler(SETTINGS[kind], Counts())
    sampler.choose(rows, 0, 9)
    with pytest.raises(BrokenLogits):
        sampler.choose(rows, 1, 9)


@pytest.mark.parametrize("before", [True, False])
def test_rows_of_an_earlier_forward_are_refused(before: bool) -> None:
    rows = Device().rows()
    if before:
        assert rows[0].shape == (50,)
    rows._result.expire()
    for read in (lambda: rows[0], lambda: rows.best(0), lambda: rows.likeliest([0], 4)):
        with pytest.raises(RuntimeError, match="earlier forward"):
            read()


def defined(row: NDArray[np.floating], count: int) -> NDArray[np.int32]:
    """As it is meant: a stable sort of all."""
    order = np.argsort(-row, kind="stable")[:count]
    return np.pad(order, (0, count - len(order)), constant_values=-1).astype(np.int32)


@settings(deadline=None)
@given(
    row=hnp.arrays(
        np.float32,
        st.integers(1, 3 * BLOCK + 5),
        elements=st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 1.0, 2.5]) | st.floats(-9, 9, width=32),
    ),
    count=st.integers(1, 12),
)
def test_the_largest_in_order_and_equals_by_id(row: NDArray[np.float32], count: int) -> None:
    expected = defined(row, count)
    assert np.array_equal(top_tokens(row, count), expected)
    device = CudaRunner.__new__(CudaRunner)
    device.vocabulary = len(row)
    found = device.top(torch.from_numpy(np.stack([row, row])), count)
    assert found.dtype == torch.int32
    assert np.array_equal(found[1], expected)


class Curious(Buried):
    """Asks for the three likeliest; drafts that are accepted and drafts that are not."""

    def __init__(self, reply: Sequence[int]) -> None:
        super().__init__(reply)
        self.top = 3
        self.told: list[NDArray[np.int32]] = []

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        assert top is not None
        assert top.shape == (len(tokens), 3)
        self.told.append(top)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("backend", ["llama-float32", "qwen3-blocks"])
def test_a_drafter_is_told_of_every_row_that_chose(backend: tiny.Backend, kind: str) -> None:
    engine, prompt = tiny.tiny_engine(backend), random_tokens(20)
    wanted = SETTINGS[kind].model_copy(update={"max_new_tokens": 16})
    reply = tokens_of(fresh_steps(engine, prompt, wanted))
    curious = Curious(reply)
    steps = fresh_steps(engine, prompt, wanted, curious)
    assert max(len(step.tokens) for step in steps) > 3
    told = np.concatenate(curious.told)
    assert len(told) == len(reply) == 16
    text = prompt + reply
    engine.sequence.rollback(0)
    engine.sequence.read(text[: len(prompt) - 1])
    rows = engine.sequence.forward(text[len(prompt) - 1 : len(prompt)], [-1])
    for place, best in enumerate(told):
        assert np.array_equal(best, defined(np.array(rows[0]), 3))
        engine.sequence.commit([0])
        rows = engine.sequence.forward([reply[place]], [-1])
    if kind == "greedy":
        assert told[:, 0].tolist() == reply


class Reader(Drafter):
    """The databases; it keeps what it sees."""

    reads_hidden = True

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__(width=6)
        self.reads_hidden = reads
        self.seen: list[NDArray[np.float32]] = []
        self.positions: list[int] = []
        self.committed: list[int] = []

    def see(self, hidden: NDArray[np.float32], position: int) -> None:
        self.seen.append(hidden.copy())
        self.positions += range(position, position + len(hidden))

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        self.committed += tokens


@pytest.fixture(params=["cpu", "torch"])
def sequence(request: pytest.FixtureRequest) -> CachedSequence:
    model = tiny_model("llama")
    if request.param == "torch":
        return TorchRunner(model, context_length=CONTEXT).open()
    blocks = tiny.block_model(model, lambda floats: pack(floats, 8))
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


def test_a_proposer_that_reads_them_sees_one_for_each_committed_token(sequence: CachedSequence) -> None:
    engine, prompt = LocalEngine(sequence, (), text_of), random_tokens(12)
    settings, blind, reader = GenerationSettings(max_new_tokens=20), Reader(reads=False), Reader()
    tokens = tokens_of(fresh_steps(engine, prompt, settings, blind))
    assert blind.seen == []
    assert tokens_of(fresh_steps(engine, prompt, settings, reader)) == tokens
    assert reader.committed == blind.committed == tokens
    # Of the prompt, too; behind the last token nothing is
    assert reader.positions == list(range(len(prompt) + len(tokens) - 1))
    states = np.concatenate(reader.seen)[len(prompt) - 1 :]
    assert len(states) == len(tokens)
    best = (states @ head_of(sequence).T).argmax(axis=1)
    assert (best == tokens).mean() > 0.9  # rounding may turn a tie
