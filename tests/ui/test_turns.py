"""The line for the engine, waiting, stopping, replay: without a browser."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hierchat.chat.frames import CompareFrame, Figures, Frame
from hierchat.ui import turns, versus
from hierchat.ui.launch import is_loopback, login
from hierchat.ui.sessions import Line, Running, Session, Sessions, Stale
from tests.ui.fake_service import FakeHost, HostStatus


def test_line_is_first_come_first_served_and_bounded() -> None:
    line = Line(most=2)
    first, second = line.join(), line.join()
    assert first is not None
    assert second is not None
    assert line.join() is None
    assert (line.ahead(first), line.ahead(second)) == (0, 1)
    line.leave(first)
    assert line.ahead(second) == 0


def test_a_waiting_reply_shows_its_place_and_stops_at_once() -> None:
    line, host = Line(), FakeHost()
    line.join()
    stop = threading.Event()
    with closing(turns.run(stop, line, host, lambda stop: iter(()))) as items:
        assert "Waiting" in next(items)
        assert "one other reply" in next(items)
        stop.set()
        with pytest.raises(turns.Stopped):
            next(items)
    assert line.join() is not None


def test_a_reply_waits_for_the_model_and_then_begins() -> None:
    host = FakeHost()
    host.status = HostStatus("m", "downloading", 1_000_000, 93_000_000)

    def start(stop):
        yield "a frame"

    with closing(turns.run(threading.Event(), Line(), host, start)) as items:
        next(items)
        assert "1 of 93 MB" in next(items)
        host.status = HostStatus("m", "ready")
        assert next(items) == "a frame"


def test_a_failed_model_refuses() -> None:
    host = FakeHost()
    host.status = HostStatus("m", "failed", message="No room.")
    items = turns.run(threading.Event(), Line(), host, lambda stop: iter(()))
    next(items)
    with pytest.raises(turns.Refused, match="No room"):
        next(items)


def test_leaving_the_page_sets_stop_and_frees_the_line() -> None:
    line, seen = Line(), []

    def start(stop: threading.Event):
        seen.append(stop)
        try:
            while True:
                yield "frame"
        finally:
            seen.append("closed")

    items = turns.run(threading.Event(), line, FakeHost(), start)
    next(items)
    next(items)
    items.close()
    assert seen[0].is_set()
    assert seen[1] == "closed"
    assert line.ahead(line.join()) == 0


def test_closing_a_session_stops_its_reply() -> None:
    sessions = Sessions()
    running = sessions.open("a").running[7] = Running()
    sessions.close("a")
    assert running.stop.is_set()


def test_a_page_that_was_never_opened_here_is_stale() -> None:
    """After a restart its chat is not known: a message must not begin another one."""
    sessions = Sessions()
    with pytest.raises(Stale):
        sessions.of("a")
    assert sessions.open("a") is sessions.of("a")
    sessions.close("a")
    with pytest.raises(Stale):
        sessions.of("a")


def test_replay_starts_both_arms_together() -> None:
    slow = Frame("writing", "a", Figures(tokens=1))
    recording = [
        ("speculative", 0.5, slow),
        ("speculative", 0.6, Frame("done", "ab")),
        ("vanilla", 0.9, slow),
        ("vanilla", 1.1, Frame("done", "ab")),
        ("vanilla", 1.2, Frame("done", "ab")),
    ]
    tracks = versus.tracks(recording)
    assert [round(at, 3) for at, _ in tracks["speculative"]] == [0.0, 0.1]
    assert [round(at, 3) for at, _ in tracks["vanilla"]] == [0.0, 0.2]
    seen = list(versus.replay(Session(recording=recording)))
    assert seen[0] == {"vanilla": slow, "speculative": slow}
    assert {frame.phase for frame in seen[-1].values()} == {"done"}


def test_recording_keeps_only_what_moved() -> None:
    session = Session()
    writing = Frame("writing", "a")
    frames = (
        CompareFrame({"vanilla": Frame("waiting"), "speculative": writing}, "speculative"),
        CompareFrame({"vanilla": writing, "speculative": writing}, "vanilla"),
    )
    assert list(versus.record(session, (frame for frame in frames))) == list(frames)
    assert [arm for arm, _, _ in session.recording] == ["speculative", "vanilla"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("192.168.1.2", False)],
)
def test_only_loopback_goes_without_a_login(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert (login(host, share=False, asked=False) is None) is expected
    assert login(host, share=True, asked=False)
    name, password = login(host, share=False, asked=True)
    assert name == "me"
    assert len(password) >= 32
