"""The model that answers: loading, failing, replacing."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from hierchat.chat.frames import Frame
from hierchat.models.catalogue import Catalogue, Gguf, ModelEntry, ModelSource
from hierchat.models.progress import FetchError, Progress, Report, UnknownModelError, UnsupportedError
from hierchat.runtime.loaded import Hosted
from hierchat.runtime.slot import HostStatus, ModelHost
from hierchat.store import Store
from tests.testing.tiny_chat import catalogue, hosted, settle

from ..chat.conftest import Talk, talk_on


def load(name: str, report: Report) -> Hosted:
    if name == "broken":
        raise FetchError("broken cannot be fetched.")
    return hosted(name)


@pytest.fixture
def host() -> ModelHost:
    return ModelHost(catalogue("tiny", "broken", "another"), load=load)


def start(host: ModelHost, name: str) -> HostStatus:
    host.start(name)
    return settle(host).status


def test_the_default_comes_first(host: ModelHost) -> None:
    assert host.names[0] == "tiny"
    assert sorted(host.names) == ["another", "broken", "tiny"]
    assert host.settings("tiny") == host.catalogue.entry("tiny").sampling


def test_nothing_is_loaded_at_first(host: ModelHost) -> None:
    assert host.status.phase == "none"
    assert host.hosted is None


def test_a_model_is_loaded_in_the_background(host: ModelHost) -> None:
    assert start(host, "tiny") == HostStatus("tiny", "ready")
    assert host.status.exact is True
    assert host.hosted is not None
    assert host.hosted.name == "tiny"


def test_an_unknown_name_is_refused_at_once(host: ModelHost) -> None:
    start(host, "tiny")
    with pytest.raises(UnknownModelError, match="Did you mean tiny"):
        host.start("tinny")
    assert host.status == HostStatus("tiny", "ready")


def test_a_failing_load_says_so(host: ModelHost) -> None:
    assert start(host, "broken") == HostStatus("broken", "failed", message="broken cannot be fetched.")
    assert host.hosted is None
    assert start(host, "tiny").phase == "ready"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "tiny ran out of memory"),
        (KeyError("odd"), "tiny could not be loaded. Something went wrong that hierchat did not expect."),
    ],
)
def test_any_error_is_said(error: Exception, said: str) -> None:
    def load(name: str, report: Report) -> Hosted:
        raise error

    status = start(ModelHost(catalogue("tiny"), load=load), "tiny")
    assert status.phase == "failed"
    assert status.message.startswith(said)


def test_a_failing_replacement_keeps_the_model(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    status = start(host, "broken")
    assert status == HostStatus("tiny", "ready", message="broken cannot be fetched. tiny goes on answering.")
    assert status.exact is True
    assert talk_on(store, host).send("hello").finish == "length"


def test_a_model_that_goes_on_is_ready_only_once_that_is_said(host: ModelHost) -> None:
    start(host, "tiny")
    seen = []

    class Watched(ModelHost):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "status":
                seen.append(value)

    host.__class__ = Watched
    start(host, "broken")
    assert [status for status in seen if status.phase == "ready"] == [host.status]


def test_another_model_takes_over(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    start(host, "another")
    talk = talk_on(store, host)
    last = talk.send("hello")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "another"


def test_a_conversation_goes_on_with_another_model(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    talk = talk_on(store, host)
    first = talk.send("hello")
    start(host, "another")
    second = talk.send("go on", first.message_id)
    assert second.finish == "length"
    assert talk.service.runs(talk.user, first.message_id) == []
    assert talk.service.figures(talk.user, first.message_id) is not None


def test_the_status_tells_the_phases() -> None:
    said: list[Progress] = []
    seen: list[HostStatus] = []
    asked, go = threading.Event(), threading.Event()

    def load(name: str, report: Report) -> Hosted:
        asked.set()
        go.wait()
        for phase in ("downloading", "converting", "loading"):
            report(Progress(phase, 1, 2, name))
            seen.append(host.status)
        return hosted(name)

    host = ModelHost(catalogue("tiny"), said.append, load)
    host.start("tiny")
    asked.wait()
    assert host.status.phase == "loading"
    go.set()
    settle(host)
    assert (
        [status.phase for status in seen]
        == ["downloading", "converting", "loading"]
        == [p.phase for p in said]
    )
    assert seen[0] == HostStatus("tiny", "downloading", 1, 2, "tiny")


def test_no_model_leaves_in_the_middle_of_a_reply(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    talk = talk_on(store, host)
    frames = talk.sending("hello")
    for frame in frames:
        if frame.phase == "writing":
            break
    host.start("another")
    last = list(frames)[-1]
    assert last.finish == "length"
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    assert settle(host).status.name == "another"


class Reply:
    """A reply in another thread, held up in its middle until it may go on."""

    def __init__(self, talk: Talk) -> None:
        self.frames = talk.sending("hello")
        self.begun = next(frame for frame in self.frames if frame.phase == "writing")

    def end(self) -> Frame:
        return list(self.frames)[-1]


def refuse(name: str, report: Report) -> None:
    if name == "another":
        raise UnsupportedError("another cannot run here.")


def waits(host: ModelHost, status: HostStatus) -> None:
    end = time.monotonic() + 60
    while host.status != status:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_waits_for_a_reply_says_so(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    reply = Reply(talk_on(store, host))
    host.start("another")
    waits(host, HostStatus("another", "waiting"))
    reply.end()
    assert settle(host).status == HostStatus("another", "ready")
    reply = Reply(talk_on(store, host))
    host.eject()
    waits(host, HostStatus("another", "leaving"))
    reply.end()
    waits(host, HostStatus())
    assert host.hosted is None


def test_what_waits_for_a_reply_can_be_cancelled(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    present, reply = host.hosted, Reply(talk_on(store, host))
    for begin, waiting in (
        (partial(host.start, "another"), HostStatus("another", "waiting")),
        (host.eject, HostStatus("tiny", "leaving")),
    ):
        begin()
        waits(host, waiting)
        host.cancel()
        with host._starting:  # what waited has given up
            pass
        waits(host, HostStatus("tiny", "ready"))
    reply.end()
    host.cancel()  # nothing waits any more
    assert settle(host).hosted is present
    assert talk_on(store, host).send("hello").finish == "length"


def test_another_choice_takes_the_place_of_the_one_that_waits(host: ModelHost, store: Store) -> None:
    start(host, "tiny")
    reply = Reply(talk_on(store, host))
    host.start("broken")
    waits(host, HostStatus("broken", "waiting"))
    host.start("another")
    waits(host, HostStatus("another", "waiting"))
    reply.end()
    assert settle(host).status == HostStatus("another", "ready")


def test_why_another_one_did_not_come_is_said_until_it_was_heard(host: ModelHost) -> None:
    start(host, "tiny")
    assert start(host, "broken").message
    host.hush()
    assert host.status == HostStatus("tiny", "ready")


def test_a_model_that_cannot_run_leaves_the_present_one_in_its_place(store: Store) -> None:
    loaded: list[str] = []

    def load_and_note(name: str, report: Report) -> Hosted:
        loaded.append(name)
        return load(name, report)

    host = ModelHost(catalogue("tiny", "another"), load=load_and_note, prepare=refuse)
    start(host, "tiny")
    present = host.hosted
    talk = talk_on(store, host)
    reply = Reply(talk)
    status = start(host, "another")  # while the reply is written
    assert status == HostStatus("tiny", "ready", message="another cannot run here. tiny goes on answering.")
    assert status.exact is True
    assert reply.end().finish == "length"
    assert host.hosted is present
    assert loaded == ["tiny"]
    assert talk.send("hello").finish == "length"
    assert start(host, "tiny").message == ""


def test_the_present_model_answers_while_another_is_fetched(store: Store) -> None:
    asked, go = threading.Event(), threading.Event()

    def prepare(name: str, report: Report) -> None:
        report(Progress("downloading", 1, 2, name))
        asked.set()
        go.wait()

    host = ModelHost(catalogue("tiny", "another"), load=load, prepare=prepare)
    start(host, "tiny")  # nothing answers yet: nothing is done beforehand
    talk = talk_on(store, host)
    host.start("another")
    asked.wait()
    assert host.status == HostStatus("another", "downloading", 1, 2, "another")
    assert host.hosted is not None
    last = talk.send("hello")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    go.set()
    assert settle(host).status.name == "another"
    last = talk.send("hello again")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "another"


@pytest.mark.parametrize("present", [True, False])
def test_a_download_is_given_up_for_another_choice(present: bool) -> None:
    """Whether a model answers meanwhile, or none does yet."""
    asked, go = threading.Event(), threading.Event()
    loaded: list[str] = []

    def fetch(name: str, report: Report) -> None:
        if name == "long":
            report(Progress("downloading", 1, 9, name))
            asked.set()
            assert go.wait(10)
            report(Progress("downloading", 2, 9, name))
            pytest.fail("it was not given up")

    def load_and_note(name: str, report: Report) -> Hosted:
        if not present:
            fetch(name, report)
        loaded.append(name)
        return hosted(name)

    host = ModelHost(catalogue("tiny", "long", "queued", "another"), load=load_and_note, prepare=fetch)
    if present:
        start(host, "tiny")
    host.start("long")
    assert asked.wait(10)
    host.start("queued")
    host.start("another")
    assert host.status == HostStatus("another", "loading", message="another")
    go.set()
    assert settle(host).status == HostStatus("another", "ready")
    assert loaded == ["tiny"] * present + ["another"]


def test_what_fails_first_is_said_as_a_failed_load(store: Store) -> None:
    def load_none(name: str, report: Report) -> Hosted:
        raise UnsupportedError(f"{name} cannot run here.")

    host = ModelHost(catalogue("tiny"), load=load_none, prepare=refuse)
    assert start(host, "tiny") == HostStatus("tiny", "failed", message="tiny cannot run here.")
    assert host.hosted is None


def test_a_real_file_is_looked_at_before_the_present_model_leaves(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and no more")
    present = hosted("tiny")
    entry = ModelEntry(name="broken", source=ModelSource(gguf=Gguf(path=tmp_path / "broken.gguf")))
    both = Catalogue(models={**catalogue("tiny").models, "broken": entry}, default="tiny")
    host = ModelHost(both)
    monkeypatch.setattr(host, "_load", lambda name, report: present)
    start(host, "tiny")
    status = start(host, "broken")
    assert (status.name, status.phase) == ("tiny", "ready")
    assert "broken.gguf is no whole GGUF file" in status.message
    assert host.hosted is present
