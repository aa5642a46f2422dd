"""Fetching beside the model that answers: one after another, stopped, taken up, refused."""

from __future__ import annotations

import threading

from hierchat.models.catalogue import ModelEntry
from hierchat.models.progress import FetchError, Progress, Report
from hierchat.runtime.downloads import Downloads
from tests.testing.tiny_chat import catalogue

from .shelves import wait

ENTRIES = catalogue("one", "two").models


def phase(downloads: Downloads, name: str) -> str:
    download = downloads.of(name)
    return download.phase if download else ""


class Bringing:
    """Comes piece by piece, as far as it is let."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.go = threading.Semaphore(0)
        self.done: dict[str, int] = {}

    def __call__(self, entry: ModelEntry, report: Report) -> None:
        self.came.append(entry.name)
        while self.done.get(entry.name, 0) < 3:
            report(Progress("downloading", 100 * self.done.get(entry.name, 0), 300, entry.name))
            self.go.acquire()
            self.done[entry.name] = self.done.get(entry.name, 0) + 1
        report(Progress("converting", 0, None, entry.name))
        self.go.acquire()


def test_one_after_another() -> None:
    bringing = Bringing()
    downloads = Downloads(bringing)
    for name in ("one", "two", "one"):
        downloads.start(ENTRIES[name])
    wait(lambda: phase(downloads, "one") == "downloading")
    assert phase(downloads, "two") == "waiting"
    assert downloads.busy
    bringing.go.release(8)
    wait(lambda: not downloads.busy)
    assert bringing.came == ["one", "two"]
    assert phase(downloads, "one") == phase(downloads, "two") == "done"


def test_what_was_stopped_goes_on_where_it_stopped() -> None:
    bringing = Bringing()
    downloads = Downloads(bringing)
    downloads.start(ENTRIES["one"])
    downloads.start(ENTRIES["two"])
    wait(lambda: phase(downloads, "one") == "downloading")
    downloads.stop("two")
    assert phase(downloads, "two") == "stopped"  # it had not begun
    downloads.stop("one")
    assert phase(downloads, "one") == "stopping"
    downloads.start(ENTRIES["one"])  # too early: it is still stopping
    downloads.forget("one")
    bringing.go.release()
    wait(lambda: phase(downloads, "one") == "stopped")
    assert bringing.done == {"one": 1}
    downloads.start(ENTRIES["one"])
    wait(lambda: (one := downloads.of("one")) and one.done == 100)
    bringing.go.release(3)
    wait(lambda: phase(downloads, "one") == "done")
    assert bringing.came == ["one", "one"]


def test_what_goes_wrong_is_a_sentence_and_the_next_one_comes() -> None:
    def bring(entry: ModelEntry, report: Report) -> None:
        if entry.name == "one":
            raise FetchError("one cannot be fetched.")
        raise KeyError("odd")

    downloads = Downloads(bring)
    downloads.start(ENTRIES["one"])
    downloads.start(ENTRIES["two"])
    wait(lambda: not downloads.busy)
    one, two = downloads.of("one"), downloads.of("two")
    assert one
    assert two
    assert (one.phase, one.message) == ("failed", "one cannot be fetched.")
    assert two.phase == "failed"
    assert "did not expect" in two.message
