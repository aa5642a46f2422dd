"""Which graphs are recorded, kept and dropped; no device is needed for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hierchat.engine.cuda.cuda_runner import Graph, Graphs


class Recorder:
    """Records like a device: the body runs once, replays do not run it."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.recorded: list[str] = []
        self.replayed: list[str] = []

    def __call__(self, body: Callable[[], str]) -> Graph[str]:
        name = body()
        self.recorded.append(name)
        return Graph(lambda: self.replayed.append(name), name, self.size)


def test_the_first_run_records_and_every_run_replays() -> None:
    recorder = Recorder()
    graphs = Graphs[str](capture=recorder)
    for key in ("a", "b", "a"):
        assert graphs.run(key, lambda key=key: key) == key
    assert recorder.recorded == ["a", "b"]
    assert recorder.replayed == ["a", "b", "a"]


def test_above_the_cap_the_longest_unused_goes() -> None:
    recorder = Recorder(size=100)
    graphs = Graphs[str](cap=250, capture=recorder)
    for key in ("a", "b", "a", "c", "b"):
        graphs.run(key, lambda key=key: key)
    assert recorder.recorded == ["a", "b", "c", "b"]
    assert graphs.keys == ["c", "b"]


@pytest.mark.parametrize("words", ["CUDA out of memory", "operation not permitted when stream is capturing"])
def test_where_nothing_can_be_recorded_bodies_run_as_they_are(words: str) -> None:
    recorder, runs, broken = Recorder(), [], False

    def capture(body: Callable[[], str]) -> Graph[str]:
        if broken:
            raise RuntimeError(words)
        return recorder(body)

    graphs = Graphs[str](capture=capture)
    graphs.run("a", lambda: "a")
    broken = True
    for _ in range(2):
        assert graphs.run("b", lambda: runs.append("b") or "b") == "b"
    assert runs == ["b", "b"]
    assert graphs.keys == []
    graphs.run("a", lambda: runs.append("a") or "a")
    assert runs[-1] == "a"
