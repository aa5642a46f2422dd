"""The suffix index against plain sorting and against a search through the whole log."""

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting import suffix_index
from hierchat.drafting.growing.evidence import occurrences
from hierchat.drafting.suffix_index import BREAK, DEPTH, Arrays, SuffixIndex, merged, suffix_order

texts = st.lists(st.integers(0, 2), max_size=90)
logs = st.lists(st.sampled_from([0, 0, 1, 1, 2, BREAK]), max_size=200)


def plainly(log: Sequence[int], first: int = 0, end: int | None = None) -> list[int]:
    """The order of the suffixes that begin in log[first:end]."""

    def key(position: int) -> tuple[list[int], int]:
        suffix = [*log[position : position + DEPTH], BREAK]
        return suffix[: suffix.index(BREAK)], position

    return sorted((p for p in range(first, len(log) if end is None else end) if log[p] != BREAK), key=key)


def array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def orders(arrays: Arrays) -> list[list[int]]:
    return [arrays.order[start : start + size].tolist() for start, size in zip(*arrays[2:], strict=True)]


def check(index: SuffixIndex) -> None:
    """Every run's order is what plain sorting finds, and the runs cover the log."""
    log = index.arrays.tokens.tolist()
    bounds = [*index.arrays.starts.tolist(), len(log)]
    assert bounds[0] == 0 or not log
    assert orders(index.arrays) == [plainly(log, first, end) for first, end in pairwise(bounds)]


@settings(max_examples=60)
@given(log=logs)
def test_a_log_is_sorted(log: list[int]) -> None:
    assert suffix_order(array(log)).tolist() == plainly(log)


def test_long_texts_that_repeat_themselves_and_a_large_vocabulary() -> None:
    """Long equal runs, whose suffixes differ by position alone."""
    texts = [list(range(period)) * (1500 // period) for period in (1, 5, 64, 100)]
    large = np.random.default_rng(0).choice([0, 7, 2**31 - 1, 49_151, BREAK], 2000).tolist()
    for log in (*texts, large):
        assert suffix_order(array(log)).tolist() == plainly(log)
    with pytest.raises(ValueError, match="negative"):
        suffix_order(array([1, -2]))


@settings(max_examples=60)
@given(older=logs, newer=logs)
def test_two_orders_become_one(older: list[int], newer: list[int]) -> None:
    log = [*older, BREAK, *newer, BREAK]
    cut = len(older) + 1
    parts = array(plainly(log, 0, cut)), array(plainly(log, cut))
    assert merged(array(log), *parts).tolist() == plainly(log)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), texts),
        st.tuples(st.just("extend"), st.lists(texts, max_size=4)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 30), max_size=3)),
    ),
    max_size=14,
)


@pytest.fixture(params=[0, 100, suffix_index.AT_ONCE])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in the thread, the larger work in the thread, nothing in the thread. Little room to begin with."""
    monkeypatch.setattr(suffix_index, "AT_ONCE", request.param)
    monkeypatch.setattr(suffix_index, "_SPARE", 8)


@pytest.mark.usefixtures("at_once")
@settings(max_examples=60)
@given(steps=steps, waits=st.booleans())
def test_the_order_is_right_whatever_happens(steps: list[tuple[str, list]], waits: bool) -> None:
    index = SuffixIndex()
    held: list[tuple[int, list[int]]] = []
    log: list[int] = []
    for what, argument in steps:
        if what == "remove":
            gone = [held.pop(number % len(held)) for number in argument if held]
            index.remove((start, len(text)) for start, text in gone)
            for start, text in gone:
                log[start : start + len(text)] = [BREAK] * len(text)
        else:
            added = [argument] if what == "append" else argument
            starts = [index.append(argument)] if what == "append" else index.extend(argument)
            held += zip(starts, added, strict=True)
            log += [token for text in added for token in (*text, BREAK)]
        if waits:
            index.wait()
            check(index)
    index.wait()
    assert index.arrays.tokens.tolist() == log
    check(index)
    for start, text in held:
        assert log[start : start + len(text) + 1] == [*text, BREAK]


def after(index: SuffixIndex, ending: Sequence[int]) -> list[int]:
    """What follows where `ending` stands, found as lookups do: by halving each run's order."""
    found = []
    text = array(ending)
    with index.lock:
        log, order, starts, sizes = index.arrays
        for start, size in zip(starts, sizes, strict=True):
            part = order[start : start + size]
            run = np.array([0, log.ctypes.data, log.size, part.ctypes.data, size])
            low, high = occurrences(run, 0, size, text, 0)
            found += [int(log[position + text.size]) for position in part[low:high]]
    return found


def test_lookups_beside_the_thread_see_no_half_done_state() -> None:
    """Each finds what is always there."""
    index, rng = SuffixIndex(), np.random.default_rng(0)
    index.append([70_001, 70_002, 70_003, 70_004])
    held, wrong, done = [], list[object](), threading.Event()

    def look() -> None:
        while not done.is_set():
            if (found := after(index, [70_001, 70_002])) != [70_003]:
                wrong.append(found)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(20):
            text = rng.integers(0, 50, 20_000 if number % 4 else 40_000)
            held.append((index.append(text), text.size))
            if number % 5 == 4:
                index.remove([held.pop(number // 8)])
        index.wait()
    finally:
        done.set()
        reader.join()
    assert not wrong
    log = index.arrays.tokens
    bounds = pairwise([*index.arrays.starts.tolist(), log.size])
    assert orders(index.arrays) == [(suffix_order(log[first:end]) + first).tolist() for first, end in bounds]


def test_too_little_memory_leaves_more_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    index = SuffixIndex()
    index.append([1, 2, 3, 4])
    monkeypatch.setattr(suffix_index, "suffix_order", fail)
    monkeypatch.setattr(suffix_index, "AT_ONCE", 100)
    index.append([5] * 200)
    index.wait()
    assert "memory" in caplog.text
    assert after(index, [1, 2]) == [3]
    monkeypatch.undo()
    index.append([1, 2, 9])
    index.wait()
    check(index)
