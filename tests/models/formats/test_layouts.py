"""Panels hold what the file holds, at its size, and give it back; weights in large pages are the file's bytes, and what
cannot be had so stays mapped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.models.formats import layouts
from hierchat.models.formats.layouts import LAYOUTS, in_large_pages, interleave, restore


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 40), blocks=st.integers(1, 5), lanes=st.sampled_from([8, 16]), seed=st.integers(0, 99)
)
def test_every_byte_comes_back(name: str, rows: int, blocks: int, lanes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows, blocks * LAYOUTS[name].size), dtype=np.uint8)
    order = random.permutation(rows)
    panels = interleave(name, raw, lanes, order)
    assert panels.nbytes == -(-rows // lanes) * lanes * raw.shape[1]
    some = random.integers(0, rows, 7)
    np.testing.assert_array_equal(restore(name, panels, lanes, some, raw.shape[1]), raw[order[some]])


def test_many_panels_on_several_threads() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (4000, 2 * 144), dtype=np.uint8)
    panels = interleave("Q4_K", raw, 8)
    np.testing.assert_array_equal(restore("Q4_K", panels, 8, np.arange(4000), 288), raw)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_block_has_the_size_that_its_fields_have(name: str) -> None:
    layout = LAYOUTS[name]
    numbers = layout.weights * layout.bits // 8
    assert layout.head_size + numbers == layout.size
    assert layout.place(len(layout.head), 8) == 8 * layout.head_size


# Large pages


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100,003 bytes, read in pieces of 4,096."""
    if sys.platform != "linux":
        pytest.skip("only Linux has large pages")
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


@pytest.mark.parametrize("why", ["small weights", "switched off", "a system without them"])
def test_others_stay_mapped(file: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "small weights":
        monkeypatch.setattr(layouts, "SMALLEST", 100_004)
    elif why == "switched off":
        layouts._SETTING.write_text("always madvise [never]\n")
    else:
        layouts._SETTING.unlink()
    assert in_large_pages(file, 0, 100_003) is None
