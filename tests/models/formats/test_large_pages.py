"""Weights in large pages are the file's bytes, whatever the pieces; what cannot be had so stays mapped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hierchat.models.formats import layouts
from hierchat.models.formats.layouts import in_large_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100,003 bytes, read in pieces of 4,096."""
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    monkeypatch.setattr(layouts, "_SETTING", setting)
    monkeypatch.setattr(layouts, "SMALLEST", 1)
    monkeypatch.setattr(layouts, "_PIECE", 4096)
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, 100_003, dtype=np.uint8).tobytes())
    return path


@pytest.mark.parametrize(("begin", "size"), [(0, 100_003), (64, 4096), (4096, 90_001), (100_002, 1)])
def test_the_bytes_are_those_of_the_file(file: Path, begin: int, size: int) -> None:
    found = in_large_pages(file, begin, size)
    assert found.tobytes() == file.read_bytes()[begin : begin + size]


def test_a_file_that_is_cut_off_is_no_model(file: Path) -> None:
    with pytest.raises(OSError, match="cut off"):
        in_large_pages(file, 64, 100_003)


def test_small_weights_stay_mapped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "SMALLEST", 100_004)
    assert in_large_pages(file, 0, 100_003) is None


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_a_system_without_them_maps(file: Path, setting: str | None) -> None:
    if setting is None:
        layouts._SETTING.unlink()
    else:
        layouts._SETTING.write_text(setting)
    assert in_large_pages(file, 0, 100_003) is None
