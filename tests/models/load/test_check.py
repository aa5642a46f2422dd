"""A model that cannot run is refused in plain words, before its weights are fetched, unpacked or read."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil
import pytest

from hierchat.models.catalogue import Hub, ModelEntry, ModelSource, Size
from hierchat.models.load import check
from hierchat.models.load.check import require_runnable
from hierchat.models.load.load_model import load
from hierchat.models.progress import DoesNotFitError, Progress, UnsupportedError
from tests.testing.architectures import finish
from tests.testing.fake_hub import COMMIT, REPO, FakeHub
from tests.testing.tiny_files import change_config, of_folder, of_gguf

NO_WAY = "tiny cannot run here. It is a model of the kind chatglm, and no way is known here to read such a"


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """As much of a file as says what it is: of a kind that nothing here reads."""
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "chatglm")
    said = {"context_length": 32768, "embedding_length": 640, "block_count": 18, "feed_forward_length": 2048}
    for name, value in (said | {"head_count": 4, "head_count_kv": 1, "key_length": 256}).items():
        getattr(writer, f"add_{name}")(value)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 640), np.float32))
    finish(writer)
    return path


@pytest.mark.parametrize("backend", [None, "float32", "float16"])
def test_a_file_is_refused_by_its_head(odd: Path, cache: Path, backend: Any) -> None:
    seen: list[Progress] = []
    for refuse in (require_runnable, load):
        with pytest.raises(UnsupportedError) as found:
            refuse(of_gguf(odd), "cpu", progress=seen.append, backend=backend)
        assert str(found.value).startswith(NO_WAY)
    assert not seen
    assert not cache.exists()  # nothing was hashed, unpacked or converted
    for word in ("Error", "ForCausal", "Config", "Unsupported"):
        assert word not in str(found.value)
    with pytest.raises(UnsupportedError, match="CPU engine does not compute tiny: architecture chatglm"):
        require_runnable(of_gguf(odd), "cpu", "blocks")


def test_what_runs_is_not_refused(tiny_gguf: Path, tiny_folder: Path) -> None:
    for backend in (None, "blocks", "float32", "float16"):
        require_runnable(of_gguf(tiny_gguf), "cpu", backend)  # type: ignore[arg-type]
    windows = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64}
    for changed in ({}, windows):
        change_config(tiny_folder, **changed)
        for blocks in (None, 8):
            require_runnable(of_folder(tiny_folder, blocks=blocks), "cpu")


HUB = ModelEntry(name="tiny", source=ModelSource(hub=Hub(repo=REPO, revision=COMMIT)))
ODD = [
    (
        {"model_type": "roberta", "architectures": ["RobertaForCausalLM"]},
        "It is a model of the kind roberta, and it is made to fill in words, not to chat.",
    ),
    (
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        "tiny is no causal language model (t5, made for another task), so it cannot chat.",
    ),
    ({"model_type": "wordpainter"}, "tiny: transformers does not know the architecture 'wordpainter'."),
]


@pytest.mark.parametrize(("changed", "said"), ODD)
def test_of_a_repository_only_the_configuration_is_fetched(
    changed: dict[str, Any], said: str, hub: FakeHub
) -> None:
    hub.files["config.json"] = json.dumps(json.loads(hub.files["config.json"]) | changed).encode()
    for refuse in (require_runnable, load):
        with pytest.raises(UnsupportedError) as found:
            refuse(HUB, "cpu")
        assert said in str(found.value)
    fetched = [path for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]
    assert {path.rsplit("/", 1)[-1] for path in fetched} == {"config.json"}


LARGE = Size(parameters=10**13, embeddings=0, slot=1000)


@pytest.mark.parametrize("fields", [{}, {"blocks": 8}])
def test_what_cannot_fit_is_refused_before_anything_is_fetched(fields: dict[str, Any], hub: FakeHub) -> None:
    large = HUB.model_copy(update={"size": LARGE, **fields})
    with pytest.raises(DoesNotFitError, match="tiny needs about"):
        require_runnable(large, "cpu")
    assert not hub.asked


def test_memory_of_the_present_model_counts_as_free(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.models.device_memory.free_memory", lambda device: 0)
    entry = of_gguf(tiny_gguf, size=Size(parameters=100_000, slot=64))
    for backend in (None, "float16"):
        with pytest.raises(DoesNotFitError):
            require_runnable(entry, "cpu", backend)  # type: ignore[arg-type]
        require_runnable(entry, "cpu", backend, held=psutil.virtual_memory().total)  # type: ignore[arg-type]


def test_one_backend_asks_the_engine_and_another_transformers(tiny_gguf: Path, tmp_path: Path) -> None:
    entry, packed = of_gguf(tiny_gguf), of_folder(tmp_path, blocks=8)
    for backend, by_engine in ((None, True), ("float32", True), ("float16", False), ("nf4", False)):
        assert check.by_engine(entry, "cpu", backend) == by_engine  # type: ignore[arg-type]
    assert not check.by_engine(entry, "cuda", None)
    assert check.by_engine(packed, "cpu", None)
    assert not check.by_engine(packed, "cpu", "float32")  # packed blocks are rounded
