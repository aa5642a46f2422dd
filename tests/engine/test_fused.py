"""Which 4-bit products of bitsandbytes take its fused kernel."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from hierchat.engine.cuda.cuda_runner import _CHOICE, fused_choice
from hierchat.engine.cuda.row_attention import DEPTH


def never(device: int, dtype: torch.dtype, rows: int, out: int, inner: int) -> bool:
    return False


@pytest.mark.parametrize("rows", [2, 16, 64, DEPTH])
def test_all_forwards_are_fused_where_there_is_a_kernel(rows: int) -> None:
    assert fused_choice(never, lambda device: (9, 0))(0, torch.bfloat16, rows, 4096, 4096)
    assert fused_choice(never, lambda device: (7, 5))(0, torch.float16, rows, 4096, 4096)


def test_elsewhere_bitsandbytes_chooses() -> None:
    assert not fused_choice(never, lambda device: (9, 0))(0, torch.bfloat16, DEPTH + 1, 4096, 4096)
    assert not fused_choice(never, lambda device: (9, 0))(0, torch.float32, 8, 4096, 4096)
    assert not fused_choice(never, lambda device: (7, 5))(0, torch.bfloat16, 8, 4096, 4096)
    assert fused_choice(lambda *given: True, lambda device: (6, 0))(0, torch.float16, 8, 4096, 4096)


def test_the_installed_version_asks_where_we_answer() -> None:
    """It cannot be imported without a GPU."""
    spec = find_spec("bitsandbytes")
    if spec is None or spec.origin is None:
        pytest.skip("bitsandbytes is not installed")
    said = (Path(spec.origin).parent / "backends" / "cuda" / "ops.py").read_text()
    assert f"use_custom = {_CHOICE}(A.device.index, A.dtype, M, N, K)" in said
