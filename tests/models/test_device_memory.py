"""What a model takes in memory, told before it is here; and what is refused."""

import warnings

import pytest
import torch

from hierchat.models import device_memory
from hierchat.models.cache import count, gigabytes
from hierchat.models.catalogue import Gguf, Hub, ModelEntry, ModelSource, Size, read_catalogue
from hierchat.models.device_memory import best_device, needs_of, needs_of_blocks, require_fit, why_no_cuda
from hierchat.models.fetch.bring import block_bytes, weight_bytes
from hierchat.models.load import load_model
from hierchat.models.load.check import fit, require_memory
from hierchat.models.progress import DeviceError, DoesNotFitError
from tests.testing.tiny_files import of_folder

GB = BILLION = 10**9


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    def make(count: float) -> None:
        monkeypatch.setattr(device_memory, "free_memory", lambda device: int(count))

    return make


def test_the_context_that_a_refusal_offers_fits(free) -> None:
    entry = read_catalogue().entry("qwen3-1.7b")
    assert entry.size
    needs = needs_of(entry, entry.size, "cpu")
    free(20 * GB)
    require_fit(entry.name, needs, 16384)
    free(9 * GB)
    with pytest.raises(
        DoesNotFitError, match=r"qwen3-1\.7b needs about 12\.2 GB .* 9\.0 GB are free"
    ) as caught:
        require_fit(entry.name, needs, 16384)
    offered = int(str(caught.value).split("`context_length: ")[1].split("`")[0])
    require_fit(entry.name, needs, offered)


def test_local_folder_is_measured(free, tiny_folder) -> None:
    free(100_000)
    with pytest.raises(DoesNotFitError, match=r"tiny needs about \d+ KB"):
        load_model.load(of_folder(tiny_folder), "cpu")


def test_sizes_and_counts_are_rounded_to_the_unit_that_they_reach() -> None:
    sizes = (499, 999_400, 999_600, 999_400_000, 999_885_952, 1_340_000_000)
    assert [gigabytes(size) for size in sizes] == ["0 KB", "999 KB", "1 MB", "999 MB", "1.0 GB", "1.3 GB"]
    counts = (1_000, 999_600, 134_515_008, 999_885_952, 1_777_088_000, 32_762_123_264)
    assert [count(one) for one in counts] == ["1K", "1M", "135M", "1B", "1.8B", "32.8B"]


def entry(file: str) -> ModelEntry:
    source = ModelSource(gguf=Gguf(repo="org/model", file=file))
    return ModelEntry(name="m", source=source, size=Size(parameters=BILLION))


@pytest.mark.parametrize(
    ("file", "bits", "in_memory"),
    [
        ("m-Q4_K_M.gguf", 4.9, 4.9),
        ("Q3_K_M/m-Q3_K_M-00001-of-00002.gguf", 3.9, 3.9),
        ("m-UD-IQ2_XXS.gguf", 2.7, 4.7),
        ("m-TQ1_0.gguf", 2.0, 2.9),
    ],
)
def test_narrow_blocks_are_wider_in_memory(file: str, bits: float, in_memory: float) -> None:
    assert weight_bytes(entry(file), "cpu") == int(BILLION * bits / 8)
    assert block_bytes(entry(file), "cpu") == int(BILLION * in_memory / 8)


def test_packed_safetensors_take_what_they_are_packed_to() -> None:
    hub = ModelSource(hub=Hub(repo="org/model"))
    packed = ModelEntry(name="m", source=hub, blocks=8, size=Size(parameters=BILLION))
    assert (weight_bytes(packed, "cpu"), block_bytes(packed, "cpu")) == (2 * BILLION, 9 * BILLION // 8)


@pytest.mark.parametrize("file", ["m-Q4_K_M.gguf", "m-UD-IQ2_XXS.gguf"])
def test_a_refusal_says_the_memory_that_models_shows(file: str, free) -> None:
    model = entry(file).model_copy(update={"size": Size(parameters=30 * BILLION, slot=100_000)})
    free(3 * GB)
    with pytest.raises(DoesNotFitError) as caught:
        require_memory(model, "cpu")
    said = fit(model, "cpu").why.split(" of ")[0].removeprefix("Needs ")
    assert f"m needs about {said} of memory (4096 positions)" in str(caught.value)


TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver. (Triggered internally at CUDAFunctions.cpp:109.)"
)


def test_a_driver_that_is_too_old_is_said_and_the_processor_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def old() -> bool:
        warnings.warn(TOO_OLD, stacklevel=1)
        return False

    monkeypatch.delenv("HIERCHAT_DEVICE", raising=False)
    monkeypatch.setattr(device_memory, "cuda_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", old)
    device_memory._warn.cache_clear()
    assert [best_device(), best_device()] == ["cpu", "cpu"]
    why = "The NVIDIA driver on your system is too old (found version 11040)"
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == [f"{why}."]
    monkeypatch.setenv("HIERCHAT_DEVICE", "cuda")
    with pytest.raises(DeviceError, match=r"which is not there \(The NVIDIA driver .*\)\. Unset it"):
        best_device()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_no_cuda() == "this PyTorch is made for processors"


def test_where_a_gpu_is_too_small_the_processor_is_offered(free) -> None:
    free(4 * GB)
    needs = needs_of_blocks(5 * GB, 0)
    with pytest.raises(DoesNotFitError, match=r"on cuda .* With HIERCHAT_DEVICE=cpu the processor"):
        require_fit("it", needs, 4096, device="cuda")
    with pytest.raises(DoesNotFitError, match=r"Choose a smaller model\.$"):
        require_fit("it", needs, 4096)
