"""Fetching beside the model that answers: one after another, stopped, taken up, refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hierchat.models.catalogue import ModelEntry
from hierchat.models.progress import FetchError, Progress, Report
from hierchat.runtime.downloads import Fetches
from tests.testing.tiny_chat import catalogue

ENTRIES = catalogue("one", "two").models


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def phase(fetches: Fetches, name: str) -> str:
    fetch = fetches.of(name)
    return fetch.phase if fetch else ""


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
    fetches = Fetches(bringing)
    for name in ("one", "two", "one"):
        fetches.start(ENTRIES[name])
    wait(lambda: phase(fetches, "one") == "downloading")
    assert phase(fetches, "two") == "waiting"
    assert fetches.busy
    bringing.go.release(8)
    wait(lambda: not fetches.busy)
    assert bringing.came == ["one", "two"]
    assert phase(fetches, "one") == phase(fetches, "two") == "done"


def test_how_far_it_is_and_what_it_does() -> None:
    bringing = Bringing()
    fetches = Fetches(bringing)
    fetches.start(ENTRIES["one"])
    for count in range(3):
        wait(lambda count=count: (one := fetches.of("one")) and (one.done, one.total) == (100 * count, 300))
        bringing.go.release()
    wait(lambda: phase(fetches, "one") == "converting")
    bringing.go.release()
    wait(lambda: phase(fetches, "one") == "done")
    fetches.forget("one")
    assert fetches.of("one") is None


def test_what_was_stopped_goes_on_where_it_stopped() -> None:
    bringing = Bringing()
    fetches = Fetches(bringing)
    fetches.start(ENTRIES["one"])
    fetches.start(ENTRIES["two"])
    wait(lambda: phase(fetches, "one") == "downloading")
    fetches.stop("two")
    assert phase(fetches, "two") == "stopped"  # it had not begun
    fetches.stop("one")
    assert phase(fetches, "one") == "stopping"
    fetches.start(ENTRIES["one"])  # too early: it is still stopping
    fetches.forget("one")
    bringing.go.release()
    wait(lambda: phase(fetches, "one") == "stopped")
    assert bringing.done == {"one": 1}
    fetches.start(ENTRIES["one"])
    wait(lambda: (one := fetches.of("one")) and one.done == 100)
    bringing.go.release(3)
    wait(lambda: phase(fetches, "one") == "done")
    assert bringing.came == ["one", "one"]


def test_what_goes_wrong_is_a_sentence_and_the_next_one_comes() -> None:
    def bring(entry: ModelEntry, report: Report) -> None:
        if entry.name == "one":
            raise FetchError("one cannot be fetched.")
        raise KeyError("odd")

    fetches = Fetches(bring)
    fetches.start(ENTRIES["one"])
    fetches.start(ENTRIES["two"])
    wait(lambda: not fetches.busy)
    one, two = fetches.of("one"), fetches.of("two")
    assert one
    assert two
    assert (one.phase, one.message) == ("failed", "one cannot be fetched.")
    assert two.phase == "failed"
    assert "did not expect" in two.message
