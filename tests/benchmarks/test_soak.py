"""bench soak: the visits, on the page as it is now."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path

from benchmarks import soak
from tests.testing import browser as driving
from tests.testing.fake_service import make


def test_a_visit_does_all_of_it_and_leaves_no_chat(tmp_path: Path) -> None:
    service = make(tmp_path)
    service.script.seconds = 1
    with driving.serving(service, ("0", soak._PASSWORD)) as address:
        did = Counter(soak._visits(address, "0", count(2)))
    assert did == {
        "visits": 1, "replies": 2, "searches": 2, "views": 4, "comparisons": 1, "vanished": 1, "log-outs": 1,
    }  # fmt: skip
    assert service.store.chats.find(service.store.users.ensure("0")) == []


def test_growth_is_the_end_against_the_time_before() -> None:
    samples = [{"seconds": at, "visits": at, "handles": 20 + at // 4, "threads": 9} for at in range(8)]
    assert soak._growth(samples) == {"handles": 0.0, "threads": 0.0}
    samples[-1]["handles"] = samples[-2]["handles"] = 42
    assert soak._growth(samples) == {"handles": 1.0, "threads": 0.0}
