"""The hub library against a small hub on localhost: gated, missing, interrupted, altered, offline."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.models.catalogue import Gguf, Hub, ModelEntry, ModelSource
from hierchat.models.fetch.bring import get, status
from hierchat.models.load.load_model import load
from hierchat.models.progress import (
    BrokenFileError,
    FetchError,
    GatedError,
    MissingError,
    OfflineError,
    Progress,
)
from tests.testing.fake_hub import COMMIT, REPO, FakeHub


@pytest.fixture
def hub(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {file.name: file.read_bytes() for file in tiny_folder.iterdir()}
    files["pytorch_model.bin"] = files["README.md"] = files["original/model.safetensors"] = b"not wanted"
    with FakeHub(files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        server.shutdown()


def entry(repo: str = REPO, revision: str = COMMIT) -> ModelEntry:
    return ModelEntry(name="tiny", source=ModelSource(hub=Hub(repo=repo, revision=revision)))


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_download_brings_what_is_needed_and_loads(hub: FakeHub, revision: str) -> None:
    seen: list[Progress] = []
    folder = get(entry(revision=revision), seen.append)
    there = {file.name for file in folder.iterdir()}
    assert "model.safetensors" in there
    assert there.isdisjoint({"pytorch_model.bin", "README.md", "original"})
    wanted = sum(len(data) for name, data in hub.files.items() if name in there)
    assert (seen[-1].done, seen[-1].total) == (wanted, wanted)
    asked = len(hub.asked)
    loaded = load(entry(revision=revision), "cpu")
    assert loaded.context_length == 256
    assert len(hub.asked) == asked  # what is there needs no network
    assert status(entry(revision=revision)).size == wanted


def test_interrupted_body_is_resumed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.cut = 1
    folder = get(entry())
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    ranges = [asked[2] for asked in hub.asked if asked[0] == "GET" and "safetensors" in asked[1]]
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in ranges if asked]
    assert starts[-1] > len(hub.files["model.safetensors"]) // 3


def test_altered_file_is_fetched_again_once(hub: FakeHub) -> None:
    hub.spoil = 1
    folder = get(entry())
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_altered_twice_is_an_error(hub: FakeHub) -> None:
    hub.spoil = 2
    with pytest.raises(BrokenFileError, match="came altered twice"):
        get(entry())
    assert not status(entry()).present
    assert get(entry())


def test_gated(hub: FakeHub) -> None:
    hub.gated = True
    with pytest.raises(GatedError, match=r"Accept its licence at http.*org/tiny.*hf auth login"):
        get(entry())


def test_missing_repository_revision_and_file(hub: FakeHub) -> None:
    with pytest.raises(MissingError, match="no public repository org/other"):
        get(entry("org/other"))
    with pytest.raises(MissingError, match="no revision 'no-such'"):
        get(entry(revision="no-such"))
    gguf = ModelSource(gguf=Gguf(repo=REPO, revision=COMMIT, file="none.gguf"))
    with pytest.raises(MissingError, match=r"has none of none\.gguf"):
        get(ModelEntry(name="tiny", source=gguf))


def test_gguf_of_a_repository_for_machines_without_gpu(hub: FakeHub, tiny_gguf: Path) -> None:
    hub.files["tiny.gguf"] = tiny_gguf.read_bytes()
    cpu = ModelSource(gguf=Gguf(repo=REPO, revision=COMMIT, file="tiny.gguf"))
    both = ModelEntry(name="tiny", source=ModelSource(hub=Hub(repo="org/other")), cpu=cpu)
    folder = get(both, device="cpu")
    assert (folder / "hierchat.json").exists()
    assert status(both, "cpu").present
    with pytest.raises(MissingError):
        get(both, device="cuda")


def test_offline_and_failing_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.failing = True
    with pytest.raises(FetchError, match="hub answered 500"):
        get(entry())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="hub cannot be reached"):
        get(entry())
