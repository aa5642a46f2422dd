"""What a model takes in memory, told before it is here; and what is refused."""

from __future__ import annotations

import pytest

from hierchat.models import device_memory
from hierchat.models.cache import count, gigabytes
from hierchat.models.catalogue import Gguf, Hub, ModelEntry, ModelSource, Size, read_catalogue
from hierchat.models.device_memory import needs_of, require_fit
from hierchat.models.fetch.bring import block_bytes, weight_bytes
from hierchat.models.load.check import fit, require_memory
from hierchat.models.load.load_model import load
from hierchat.models.progress import DoesNotFitError

GB = 10**9


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    def make(count: float) -> None:
        monkeypatch.setattr(device_memory, "free_memory", lambda device: int(count))

    return make


def test_estimate() -> None:
    size = Size(parameters=1_000, embeddings=200, slot=10)
    assert needs_of(size, "float32", "none").total(100) == int(1.15 * (4_000 + 4_000))
    assert needs_of(size, "bfloat16", "none").total(100) == int(1.15 * (2_000 + 2_000))
    assert needs_of(size, "bfloat16", "int8").total(0) == int(1.15 * (400 + 800))
    assert needs_of(size, "bfloat16", "nf4").total(0) == int(1.15 * (400 + 800 * 0.52))


def test_refusal_says_what_would_fit(free) -> None:
    catalogue = read_catalogue()
    entry = catalogue.entry("qwen3-1.7b")
    assert entry.size
    free(20 * GB)
    require_fit(entry, entry.size, 16384, "cpu")
    free(9 * GB)
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(entry, entry.size, 16384, "cpu")
    said = str(caught.value)
    for part in ("qwen3-1.7b needs about 12.2 GB of memory on cpu", "9.0 GB are free", "qwen3-0.6b"):
        assert part in said
    assert "`quantisation: nf4`" in said
    assert "`context_length: 4096`" in said
    assert "qwen3-4b" not in said


def test_what_it_offers_fits_and_it_says_where_nothing_does(free) -> None:
    entry, smallest = read_catalogue().entry("qwen3-4b"), read_catalogue().entry()
    assert entry.size
    assert smallest.size
    free(12 * GB)
    with pytest.raises(DoesNotFitError, match="quantisation: nf4") as caught:
        require_fit(entry, entry.size, 16384, "cuda")
    offered = int(str(caught.value).split("`context_length: ")[1].split("`")[0])
    require_fit(entry, entry.size, offered, "cuda")
    free(1000)
    with pytest.raises(DoesNotFitError, match="No model of the catalogue would fit"):
        require_fit(smallest, smallest.size, 64, "cpu")


def test_refused_before_fetching(free, monkeypatch: pytest.MonkeyPatch) -> None:
    free(1.5 * GB)
    monkeypatch.setattr(
        "hierchat.models.load.load_model.get", lambda *given: pytest.fail("fetched all the same")
    )
    monkeypatch.setattr("hierchat.models.load.load_model.get_blocks", lambda *given: pytest.fail("fetched"))
    with pytest.raises(DoesNotFitError, match="smollm2-135m"):
        load(read_catalogue().entry("smollm2-360m"), "cpu", backend="float16")
    with pytest.raises(DoesNotFitError, match="Choose a smaller model"):
        load(read_catalogue().entry("qwen3-8b"), "cpu")
    free(4 * GB)
    with pytest.raises(DoesNotFitError, match=r"`context_length: [0-9]+` would fit"):
        load(read_catalogue().entry("qwen3-4b"), "cpu")


def test_local_folder_is_measured(free, tiny_folder, entry_of) -> None:
    entry: ModelEntry = entry_of(tiny_folder)
    free(100_000)
    with pytest.raises(DoesNotFitError, match=r"tiny needs about \d+ KB"):
        load(entry, "cpu")


def test_sizes_and_counts_are_rounded_to_the_unit_that_they_reach() -> None:
    sizes = (499, 999_400, 999_600, 999_400_000, 999_885_952, 1_340_000_000)
    assert [gigabytes(size) for size in sizes] == ["0 KB", "999 KB", "1 MB", "999 MB", "1.0 GB", "1.3 GB"]
    counts = (1_000, 999_600, 134_515_008, 999_885_952, 1_777_088_000, 32_762_123_264)
    assert [count(one) for one in counts] == ["1K", "1M", "135M", "1B", "1.8B", "32.8B"]


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
    enough = device_memory.needs_of_blocks(BILLION // 2, 0).total(0)
    monkeypatch.setattr(device_memory, "free_memory", lambda device: enough)
    require_memory(entry("m-Q2_K.gguf"), "cpu")
    with pytest.raises(DoesNotFitError):
        require_memory(entry("m-Q4_K_M.gguf"), "cpu")


@pytest.mark.parametrize("file", ["m-Q4_K_M.gguf", "m-UD-IQ2_XXS.gguf"])
def test_a_refusal_says_the_memory_that_models_shows(file: str, free) -> None:
    model = entry(file).model_copy(update={"size": Size(parameters=30 * BILLION, slot=100_000)})
    free(3 * GB)
    with pytest.raises(DoesNotFitError) as caught:
        require_memory(model, "cpu")
    said = fit(model, "cpu").why.split(" of ")[0].removeprefix("Needs ")
    assert f"m needs about {said} of memory (4096 positions)" in str(caught.value)
