import pytest

from hierchat.models import device_memory
from hierchat.models.cache import count, gigabytes
from hierchat.models.catalogue import ModelEntry, Size, read_catalogue
from hierchat.models.device_memory import bytes_needed, dtype_on, require_fit
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
    assert bytes_needed(size, "float32", "none", 100) == int(1.15 * (4_000 + 4_000))
    assert bytes_needed(size, "bfloat16", "none", 100) == int(1.15 * (2_000 + 2_000))
    assert bytes_needed(size, "bfloat16", "int8", 0) == int(1.15 * (400 + 800))
    assert bytes_needed(size, "bfloat16", "nf4", 0) == int(1.15 * (400 + 800 * 0.52))


def test_auto_dtype() -> None:
    assert (dtype_on("auto", "cpu"), dtype_on("auto", "cuda:1"), dtype_on("float16", "cpu")) == (
        "float32",
        "bfloat16",
        "float16",
    )


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
    assert "qwen3-1.7b needs about 12.2 GB of memory on cpu" in said
    assert "9.0 GB are free" in said
    assert "`quantisation: nf4`" in said
    assert "`context_length: 4096`" in said
    assert "qwen3-0.6b" in said
    assert "qwen3-4b" not in said


def test_what_it_offers_fits(free) -> None:
    entry = read_catalogue().entry("qwen3-4b")
    assert entry.size
    free(12 * GB)
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(entry, entry.size, 16384, "cuda")
    assert "quantisation: nf4" in str(caught.value)
    offered = int(str(caught.value).split("`context_length: ")[1].split("`")[0])
    require_fit(entry, entry.size, offered, "cuda")


def test_nothing_fits(free) -> None:
    free(1000)
    entry = read_catalogue().entry()
    assert entry.size
    with pytest.raises(DoesNotFitError, match="No model of the catalogue would fit"):
        require_fit(entry, entry.size, 64, "cpu")


def test_refused_before_fetching(free, monkeypatch: pytest.MonkeyPatch) -> None:
    free(1.5 * GB)
    monkeypatch.setattr(
        "hierchat.models.load.load_torch.get", lambda *given: pytest.fail("fetched all the same")
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
