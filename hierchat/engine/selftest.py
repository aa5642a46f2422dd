"""Test at start-up that a position gets the same bits in any segment. The result is cached under a key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import binding
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from hierchat import __version__
from hierchat.config import cache_dir
from hierchat.engine.fallback import NotRight
from hierchat.engine.runner import CachedSequence, Runner, Segment
from hierchat.models.cache import write_whole

if TYPE_CHECKING:
    import torch

BORDER = 128
"""Positions per chunk of attention, in every backend: the test's drafts lie across this border."""
TREE = (-1, 0, 1, 0, 3, 1, 5, 6, 7, 8, 9)
"""Three branches; the longest holds eight positions."""
PIECES = (0, 5, 6, 38)
"""Where the second reading of the prompt is cut."""
BESIDE = 20
"""Tokens of another text's prompt that are read in a forward of the drafts."""
LIBRARIES = ("numpy", "torch", "transformers", "numba", "llvmlite", "bitsandbytes", "triton")
SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
)
"""Environment variables by which kernels are chosen."""


class SelfTestResult(BaseModel, frozen=True, extra="forbid", strict=True):
    exact: bool
    quantum: int = Field(default=1, ge=1, description="rows to whose multiples a segment is padded")
    widest: int | None = Field(default=None, ge=1, description="rows of the widest forward; None: any")


def remembered(key: str | None, test: Callable[[], SelfTestResult]) -> SelfTestResult:
    """Return the proof kept under `key` (see cache_key), or run `test`; with None, nothing is kept."""
    if key is None:
        return test()
    file = cache_dir() / "selftest" / f"{key}.json"
    with suppress(OSError, ValueError):
        return SelfTestResult.model_validate_json(file.read_bytes())
    proof = test()
    with suppress(OSError):  # then the next start tests again
        write_whole(file, f"{proof.model_dump_json()}\n".encode())
    return proof


def invariant(
    sequence: CachedSequence,
    *,
    quantum: int = 1,
    border: int = BORDER,
    one_thread: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> bool:
    """Test a runner under its present settings; leaves the sequence empty. `quantum`: rows to which it pads."""
    try:
        return all(np.array_equal(*pair) for pair in _pairs(sequence, quantum, border, one_thread))
    finally:
        sequence.rollback(0)


def cache_key(model_key: str, backend: str, device: str | None = None) -> str:
    """Hash all that the bits may depend on, but the number of threads. `device`: None for this machine's processor."""
    parts = [
        model_key,
        backend,
        device or _processor(),
        __version__,
        [_version(name) for name in LIBRARIES],
        [os.environ.get(name) for name in SWITCHES],
        _sources(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _pairs(
    sequence: CachedSequence, quantum: int, border: int, one_thread: Callable[[], AbstractContextManager[Any]]
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield logits that must be equal, likely failures first; mostly on one thread, which is faster beside other
    work."""
    random = np.random.default_rng(0)
    prompt = random.integers(0, sequence.vocabulary, border - 4).tolist()
    drafts = random.integers(0, sequence.vocabulary, len(TREE)).tolist()
    start, long = len(prompt), _path(len(TREE) - 1)
    with one_thread():
        sequence.rollback(0)
        sequence.read(prompt)
        segment = _rows(sequence, drafts, TREE)
        for leaf in (long[-1], 2, 4):  # every branch token by token
            sequence.rollback(start)
            for node in _path(leaf):
                yield _rows(sequence, [drafts[node]], [-1])[0], segment[node]
                sequence.commit([0])
        sequence.rollback(start)
        for width in (2, 3, 5, 8):
            chain = [drafts[node] for node in long[:width]]
            yield _rows(sequence, chain, range(-1, width - 1)), segment[long[:width]]

        # Among other rows: five before, and so many behind that a segment is padded to another size
        behind = 2 * quantum
        tokens = [*drafts[:5], *drafts, *drafts[:1] * behind]
        parents = [-1] * 5 + [parent + 5 if parent >= 0 else -1 for parent in TREE]
        parents += range(len(parents) - 1, len(parents) - 1 + behind)
        yield _rows(sequence, tokens, parents)[5 : 5 + len(TREE)], segment

        order = sorted(range(len(TREE)), key=lambda node: len(_path(node)))  # the same tree by depth
        parents = [order.index(TREE[node]) if TREE[node] >= 0 else -1 for node in order]
        yield _rows(sequence, [drafts[node] for node in order], parents), segment[order]

        if sequence.runner.shares_forward and sequence.runner.most_sequences > 1:
            yield _beside_a_prompt(sequence, drafts, prompt[:BESIDE]), segment

        _rows(sequence, drafts, TREE)
        sequence.commit(long[:6])  # their slots move together
        yield _rows(sequence, [drafts[node] for node in long[6:]], [-1, 0]), segment[long[6:]]

        sequence.rollback(0)
        for begin, end in zip(PIECES, (*PIECES[1:], start), strict=True):
            sequence.read(prompt[begin:end])
        yield _rows(sequence, drafts, TREE), segment
    yield _rows(sequence, drafts, TREE), segment
    yield _rows(sequence, drafts[:1], [-1])[0], segment[0]


def _beside_a_prompt(
    sequence: CachedSequence, drafts: Sequence[int], prompt: Sequence[int]
) -> NDArray[np.float32]:
    """Compute the tree in a forward that reads a piece of another text's prompt, whose logits nobody wants."""
    other = sequence.runner.open()
    try:
        piece = Segment(other, prompt, range(-1, len(prompt) - 1), logits=False)
        rows, _ = sequence.runner.forward([Segment(sequence, drafts, TREE), piece])
        return np.array([rows[node] for node in range(len(drafts))])
    finally:
        other.close()


def _rows(sequence: CachedSequence, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
    rows = sequence.forward(tokens, parents)
    return np.array([rows[node] for node in range(len(tokens))])


def _path(node: int) -> list[int]:
    path = [node]
    while TREE[path[0]] >= 0:
        path.insert(0, TREE[path[0]])
    return path


@cache
def _processor() -> str:
    return f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _sources() -> str:
    folder = Path(__file__).parent
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


# A self-test compares a runner with itself, so kernels that are wrong in the same way everywhere pass it. So a
# runner is also compared with transformers itself, and a GPU with the processor, on a few tokens.

TEXT, LATEST = 24, 4
"""Tokens of the text, and how many of them are a segment behind the others."""
CLOSE, ROUGHLY = 0.05, 0.3
"""Allowed RMS difference of a row's logits, in standard deviations: float32, and less precise. Wrong ones exceed 1."""


def text_of(vocabulary: int) -> list[int]:
    """Draw random tokens, the same each time."""
    return np.random.default_rng(1).integers(0, vocabulary, TEXT).tolist()


def expected(model: Any, vocabulary: int) -> NDArray[np.float32] | None:
    """Compute logits [LATEST, vocabulary] by transformers alone; None if it cannot."""
    import torch

    ids = torch.tensor([text_of(vocabulary)], device=model.device)
    try:
        with torch.inference_mode():
            rows = model(input_ids=ids, use_cache=False).logits[0, -LATEST:].float().numpy(force=True)
    except Exception:  # each implementation says what is wrong
        return None
    return rows if np.isfinite(rows).all() else None


def require_agreement(runner: Runner, wanted: NDArray[np.float32] | None) -> None:
    """Compare a runner with `wanted`. Raises NotRight if it computes no numbers, or others."""
    sequence = runner.open()
    try:
        text = text_of(runner.vocabulary)
        sequence.read(text[:-LATEST])
        found = _rows(sequence, text[-LATEST:], range(-1, LATEST - 1))
    finally:
        sequence.close()
    if not np.isfinite(found).all():
        raise NotRight("it computes no numbers")
    if wanted is not None and wanted.shape == found.shape:
        off = difference(found, wanted)
        if off > (CLOSE if runner.backend == "float32" else ROUGHLY):
            raise NotRight(f"its logits are {off:.1f} standard deviations from those of transformers")


def require_right_device(device: torch.device, dtype: torch.dtype) -> None:
    """Compare a device with the processor on a tiny random model. Raises NotRight if they differ."""
    if device.type == "cpu":
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).eval().requires_grad_(False)
    wanted = expected(model, 64)
    found = expected(model.to(device, dtype), 64)
    if found is None:
        raise NotRight("a small model cannot be computed there")
    most = CLOSE if dtype == torch.float32 else ROUGHLY
    if wanted is not None and (off := difference(found, wanted)) > most:
        raise NotRight(
            f"it computes a small model {off:.1f} standard deviations from what the processor does"
        )


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Return the root mean square of the row that differs most, over the standard deviation of all."""
    rows = np.sqrt(np.square(found - wanted).mean(axis=-1))
    return float(rows.max() / max(float(wanted.std()), 1e-6))
