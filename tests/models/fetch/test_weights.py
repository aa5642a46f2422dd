"""What a model's weights take, told by its file's name before it is here."""

from __future__ import annotations

import pytest

from hierchat.models import device_memory
from hierchat.models.catalogue import Gguf, Hub, ModelEntry, ModelSource, Size
from hierchat.models.fetch.bring import block_bytes, weight_bytes
from hierchat.models.load.check import require_memory
from hierchat.models.progress import DoesNotFitError

BILLION = 10**9


def entry(file: str) -> ModelEntry:
    source = ModelSource(gguf=Gguf(repo="org/model", file=file))
    return ModelEntry(name="m", source=source, size=Size(parameters=BILLION))


@pytest.mark.parametrize(
    ("file", "bits", "in_memory"),
    [
        ("m-Q4_K_M.gguf", 4.9, 4.9),
        ("m-Q2_K.gguf", 3.2, 3.2),
        ("Q3_K_M/m-Q3_K_M-00001-of-00002.gguf", 3.9, 3.9),
        ("m-UD-IQ2_XXS.gguf", 2.7, 4.7),
        ("m.IQ3_M.gguf", 3.6, 4.7),
        ("m-TQ1_0.gguf", 2.0, 2.9),
        ("m-IQ4_XS.gguf", 4.5, 4.5),
    ],
)
def test_narrow_blocks_are_wider_in_memory(file: str, bits: float, in_memory: float) -> None:
    assert weight_bytes(entry(file), "cpu") == int(BILLION * bits / 8)
    assert block_bytes(entry(file), "cpu") == int(BILLION * in_memory / 8)


def test_packed_safetensors_take_what_they_are_packed_to() -> None:
    source = ModelSource(hub=Hub(repo="org/model"))
    packed = ModelEntry(name="m", source=source, blocks=8, size=Size(parameters=BILLION))
    assert (weight_bytes(packed, "cpu"), block_bytes(packed, "cpu")) == (2 * BILLION, 9 * BILLION // 8)


def test_blocks_of_two_bits_fit_where_those_of_four_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_memory, "free_memory", lambda device: device_memory.blocks_needed(BILLION // 2, 0, 0)
    )
    require_memory(entry("m-Q2_K.gguf"), "cpu")
    with pytest.raises(DoesNotFitError):
        require_memory(entry("m-Q4_K_M.gguf"), "cpu")
