"""The CUDA target without a GPU: static slots, blocks, views and parts; plain attention, pretended graphs; which 4-bit
products are fused."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine.cuda import cuda_runner
from hierchat.engine.cuda.cuda_runner import (
    FIRST_VIEW,
    PROMPT,
    REGIMES,
    CudaRunner,
    CudaSequence,
    Graph,
    Graphs,
    Out,
)
from hierchat.engine.cuda.row_attention import DEPTH
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.engine.drafters import Buried, Noise
from tests.testing.families import tiny_family
from tests.testing.tiny import Kind, bits, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

LENGTH = 1200
"""Beyond two borders of views."""


def pretended(body: Callable[[], Out]) -> Graph[Out]:
    """A graph as on a device: its results lie where they lay at first, and only tensors tell replays apart."""
    out = body()

    def replay() -> None:
        again = body()
        if out is not None and again is not None:
            for old, new in zip(out, again, strict=True):
                old.copy_(new)

    return Graph(torch.inference_mode()(replay), out, 1)


@cache
def shared(regime: tuple[int, int], kind: Kind = "llama") -> CudaSequence:
    return CudaRunner(
        tiny_model(kind), context_length=LENGTH, regime=regime, graphs=Graphs(capture=pretended)
    ).open()


def target_of(regime: tuple[int, int], kind: Kind = "llama") -> CudaSequence:
    target = shared(regime, kind)
    target.rollback(0)
    return target


@pytest.mark.parametrize(
    ("kind", "regime"), [("qwen3", REGIMES[0]), *(("llama", regime) for regime in REGIMES)]
)
def test_logits_and_hidden_states_agree_with_those_of_dynamic_shapes(
    kind: Kind, regime: tuple[int, int]
) -> None:
    dynamic = TorchRunner(tiny_model(kind), packed=False, quantum=4, context_length=LENGTH).open()
    static = target_of(regime, kind)
    prompt, tree = random_tokens(FIRST_VIEW - 20), [-1, 0, 1, 0, 3, 1, 5]
    for _ in range(3):
        behind, states = (target.read(prompt, hidden=True) for target in (dynamic, static))
        assert behind is not None
        assert states is not None
        np.testing.assert_allclose(states, behind, atol=2e-4)
        tokens = random_tokens(len(tree), seed=len(dynamic.tokens))
        right, rows = (target.forward(tokens, tree) for target in (dynamic, static))
        best = [rows.best(node) for node in range(len(tree))]
        expected, found = (np.array([one[node] for node in range(len(tree))]) for one in (right, rows))
        np.testing.assert_allclose(found, expected, atol=2e-4)
        assert best == expected.argmax(axis=1).tolist()
        np.testing.assert_allclose(rows.hidden([0, 2, 4]), right.hidden([0, 2, 4]), atol=2e-4)
        for target in (dynamic, static):
            target.commit([0, 1, 5, 6])  # moves slots
        assert static.tokens == dynamic.tokens
        prompt = random_tokens(30, seed=5)


def test_a_prompt_is_read_in_wide_forwards() -> None:
    target = CudaRunner(tiny_model(), context_length=LENGTH, graphs=Graphs(capture=pretended)).open()
    assert (target.runner.exact, target.runner.chunk) == (True, PROMPT)
    prompt = random_tokens(700, seed=3)
    engine = LocalEngine(target, (), text_of)
    request = GenerationRequest(prompt, GenerationSettings(max_new_tokens=1), None)
    read = [step.width for step in engine.generate(request) if not step.tokens and step.width]
    assert read == [PROMPT, 699 - PROMPT]


def test_graphs_are_few() -> None:
    """One per number of rows and view, whatever is in the block."""
    graphs = Graphs[Out](capture=pretended)
    target = CudaRunner(tiny_model(), context_length=LENGTH, regime=(16, 16), graphs=graphs).open()
    assert [target.forward([1], [-1]).recorded for _ in range(2)] == [True, False]
    engine = LocalEngine(target, (), text_of)
    for length in (20, 600):
        fresh_steps(engine, random_tokens(length), GenerationSettings(max_new_tokens=20), Noise())
    views = (FIRST_VIEW, 2 * FIRST_VIEW)
    slots = id(target.slots)
    assert set(graphs.held) == {(slots, 16, view, logits) for view in views for logits in (True, False)}


def test_rows_that_depend_on_their_number_need_one_width() -> None:
    """As cuBLAS is: another kernel for another number of rows, and the same for the same."""
    model = tiny_model()
    model.model.norm.register_forward_hook(lambda _, inputs, out: out * (1 + 1e-3 * inputs[0].shape[1]))
    target = CudaRunner(model, context_length=LENGTH).open()
    assert target.runner.exact
    assert (target.runner.quantum, target.runner.widest) == REGIMES[2]
    engine = LocalEngine(target, (), text_of)
    wanted = GenerationSettings(max_new_tokens=16)
    vanilla = tokens_of(fresh_steps(engine, [1, 2, 3], wanted))
    assert tokens_of(fresh_steps(engine, [1, 2, 3], wanted, Buried(vanilla))) == vanilla


def test_rows_that_depend_on_each_other_are_never_exact() -> None:
    """As bitsandbytes' int8 is."""
    model = tiny_model()
    model.model.norm.register_forward_hook(lambda _, inputs, out: out + 1e-3 * out.mean())
    target = CudaRunner(model, context_length=LENGTH).open()
    assert not target.runner.exact
    assert len(bits(target, [1, 2], [-1, 0])) == 2


def test_a_block_has_bounds() -> None:
    target = target_of(REGIMES[2])
    with pytest.raises(ValueError, match=f"at most {DEPTH}"):
        target.forward([1] * (DEPTH + 1), [-1] * (DEPTH + 1))


def test_states_go_back_to_a_mark_and_what_lies_between_is_read_again() -> None:
    """Over several pieces of a prompt; edited before the last one, and in the middle of a reply."""
    runner = CudaRunner(tiny_family("qwen3_5_text"), context_length=240, regime=(16, 32))
    text = random_tokens(100)
    changed, fresh = runner.open(), bits_of(runner.model, text[:53])
    changed.read(text[:90])
    changed.forward(text[90:], range(-1, 9))
    changed.commit(range(5))
    for length in (94, 91, 52):
        changed.rollback(length)
        found = changed.forward(text[length : length + 1], [-1])[0].copy()
        assert np.array_equal(found, bits_of(runner.model, text[: length + 1]))
    assert np.array_equal(found, fresh)
    with pytest.raises(ValueError, match=f"at most {DEPTH}"):
        changed.forward([1] * 130, range(-1, 129))


def bits_of(model: Any, text: list[int]) -> Any:
    """Logits behind a text that a new runner reads at once."""
    one = CudaRunner(model, context_length=240, regime=(16, 32)).open()
    one.read(text[:-1])
    return one.forward(text[-1:], [-1])[0].copy()


def test_slots_hold_the_whole_context_and_end_where_they_end() -> None:
    target = CudaRunner(tiny_model(), context_length=64).open()  # the self-test needs more than that
    assert target.runner.exact
    request = GenerationRequest([1, 2, 3], GenerationSettings(), Noise())
    steps = list(LocalEngine(target, (), text_of).generate(request))
    assert steps[-1].finish == "context"
    assert len(tokens_of(steps)) == 61
    with pytest.raises(ValueError, match="no room for 500 more"):
        target.forward([1] * 500, range(-1, 499))


class Recorder:
    """Records like a device: the body runs once, replays do not run it."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.recorded: list[str] = []
        self.replayed: list[str] = []

    def __call__(self, body: Callable[[], str]) -> Graph[str]:
        name = body()
        self.recorded.append(name)
        return Graph(lambda: self.replayed.append(name), name, self.size)


def test_the_first_run_records_and_above_the_cap_the_longest_unused_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_runner, "CAP", 250)
    recorder = Recorder(size=100)
    graphs = Graphs[str](capture=recorder)
    for key in ("a", "b", "a", "c", "b"):
        assert graphs.run(key, lambda key=key: key) == key
    assert recorder.recorded == ["a", "b", "c", "b"]
    assert recorder.replayed == ["a", "b", "a", "c", "b"]
    assert list(graphs.held) == ["c", "b"]


@pytest.mark.parametrize("words", ["CUDA out of memory", "operation not permitted when stream is capturing"])
def test_where_nothing_can_be_recorded_bodies_run_as_they_are(words: str) -> None:
    recorder, runs, broken = Recorder(), [], False

    def capture(body: Callable[[], str]) -> Graph[str]:
        if broken:
            raise RuntimeError(words)
        return recorder(body)

    graphs = Graphs[str](capture=capture)
    graphs.run("a", lambda: "a")
    broken = True
    for _ in range(2):
        assert graphs.run("b", lambda: runs.append("b") or "b") == "b"
    assert runs == ["b", "b"]
    assert not graphs.held
    graphs.run("a", lambda: runs.append("a") or "a")
    assert runs[-1] == "a"


@pytest.mark.parametrize(
    ("capability", "dtype", "rows", "theirs", "fused"),
    [
        *(((9, 0), torch.bfloat16, rows, False, True) for rows in (2, 16, 64, DEPTH)),
        ((7, 5), torch.float16, DEPTH, False, True),
        ((9, 0), torch.bfloat16, DEPTH + 1, False, False),
        ((9, 0), torch.float32, 8, False, False),
        ((7, 5), torch.bfloat16, 8, False, False),
        ((6, 0), torch.float16, 8, True, True),
    ],
)
def test_forwards_are_fused_where_there_is_a_kernel_else_bitsandbytes_chooses(
    capability: tuple[int, int],
    dtype: torch.dtype,
    rows: int,
    theirs: bool,
    fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    choice = cuda_runner.fused_choice(lambda *given: theirs)
    assert choice(0, dtype, rows, 4096, 4096) == fused


def test_the_installed_version_asks_where_we_answer() -> None:
    """It cannot be imported without a GPU."""
    spec = find_spec("bitsandbytes")
    if spec is None or spec.origin is None:
        pytest.skip("bitsandbytes is not installed")
    said = (Path(spec.origin).parent / "backends" / "cuda" / "ops.py").read_text()
    assert f"use_custom = {cuda_runner._CHOICE}(A.device.index, A.dtype, M, N, K)" in said
