"""Block types of GGUF files against the gguf library's own reading of them."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.models.formats import blocks, layouts
from hierchat.models.formats.blocks import (
    NARROW,
    TYPES,
    UnknownBlockType,
    floats_of,
    from_file,
    from_floats,
    pack,
)
from hierchat.models.formats.layouts import LAYOUTS, in_large_pages, interleave, restore


@pytest.mark.parametrize("name", [name for name in sorted(TYPES) if name != "F32"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_weight_is_changed(name: str, seed: int) -> None:
    size = NARROW[name][0] if name in NARROW else LAYOUTS[name].size
    raw = np.random.default_rng(seed).integers(
        0, 256, (3, 2, size * (32 if size == 2 else 1)), dtype=np.uint8
    )
    _tame(name, raw)
    rows = raw.reshape(3, -1)
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(floats_of(name, rows), expected)
    found = from_file(name, rows)
    assert found.shape == expected.shape
    assert found.rows * found.row_bytes == (LAYOUTS[found.name].size * 6 if name in NARROW else rows.nbytes)
    np.testing.assert_array_equal(found.floats(), expected)
    np.testing.assert_array_equal(found.floats(np.array([2, 0])), expected[[2, 0]])
    np.testing.assert_array_equal(from_file(name, rows, np.array([1])).floats(), expected[[1]])


def test_many_rows_are_widened_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_AT_ONCE", 5)
    raw = np.random.default_rng(0).integers(0, 256, (7, 2 * 74), dtype=np.uint8)
    _tame("IQ2_XS", raw.reshape(7, 2, 74))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.IQ2_XS)
    np.testing.assert_array_equal(from_file("IQ2_XS", raw).floats(), expected)


@pytest.mark.parametrize(("bits", "step"), [(8, 1 / 127), (4, 2 / 15)])
def test_packing_errs_by_half_a_step(bits: int, step: float) -> None:
    floats = np.random.default_rng(0).uniform(-1, 1, (5, 96)).astype(np.float32)
    np.testing.assert_array_equal(from_floats(floats).floats(), floats)
    floats[1, :32] = 0.0
    floats[2, 32:64] = 0.25
    packed = pack(floats, bits).floats()
    assert np.abs(packed - floats).max() <= 0.51 * step
    np.testing.assert_allclose(packed[1, :32], 0.0)
    np.testing.assert_allclose(packed[2, 32:64], 0.25, rtol=1e-3)


def test_an_unknown_type_is_named() -> None:
    for read in (from_file, floats_of):
        with pytest.raises(UnknownBlockType, match=r"block type NVFP4 .*IQ2_XXS"):
            read("NVFP4", np.zeros((1, 36), np.uint8))


def _tame(name: str, raw: np.ndarray) -> None:
    """Scales that are numbers."""
    if name in ("F16", "BF16"):
        raw.reshape(3, -1, 2)[..., 1] &= 0x3F
        return
    last = {"Q2_K": (81, 83), "Q3_K": (109,), "Q6_K": (209,), "TQ1_0": (53,), "TQ2_0": (65,), "IQ1_M": (55,)}
    last |= {"MXFP4": (0,)} | dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (1, 3))
    for place in last.get(name, (1,)):
        raw[..., place] &= 0x7F if name == "MXFP4" else 0xBB  # neither infinite nor none


# Panels hold what the file holds, at its size, and give it back.


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=20)
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


def test_the_bytes_are_those_of_the_file(file: Path) -> None:
    for begin, size in ((0, 100_003), (64, 4096), (4096, 90_001), (100_002, 1)):
        found = in_large_pages(file, begin, size)
        assert found.tobytes() == file.read_bytes()[begin : begin + size]
    with pytest.raises(OSError, match="cut off"):
        in_large_pages(file, 64, 100_003)


def test_others_stay_mapped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(layouts, "SMALLEST", 100_004)
        assert in_large_pages(file, 0, 100_003) is None
    layouts._SETTING.write_text("always madvise [never]\n")
    assert in_large_pages(file, 0, 100_003) is None
    layouts._SETTING.unlink()  # a system without them
    assert in_large_pages(file, 0, 100_003) is None
