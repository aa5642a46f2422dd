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
from hierchat.runtime.model_slot import ModelSlot, SlotStatus
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.tiny_chat import catalogue, served, settle

from ..chat.conftest import Talk, talk_on


def load(name: str, report: Report) -> ServedModel:
    if name == "broken":
        raise FetchError("broken cannot be fetched.")
    return served(name)


@pytest.fixture
def slot() -> ModelSlot:
    return ModelSlot(catalogue("tiny", "broken", "another"), load=load)


def start(slot: ModelSlot, name: str) -> SlotStatus:
    slot.start(name)
    return settle(slot).status


def test_a_model_is_loaded_in_the_background(slot: ModelSlot) -> None:
    assert start(slot, "tiny") == SlotStatus("tiny", "ready")
    assert slot.status.exact is True
    assert slot.model.name == "tiny"


def test_an_unknown_name_is_refused_at_once(slot: ModelSlot) -> None:
    start(slot, "tiny")
    with pytest.raises(UnknownModelError, match="Did you mean tiny"):
        slot.start("tinny")
    assert slot.status == SlotStatus("tiny", "ready")


def test_a_failing_load_says_so(slot: ModelSlot) -> None:
    assert start(slot, "broken") == SlotStatus("broken", "failed", message="broken cannot be fetched.")
    assert slot.model is None
    assert start(slot, "tiny").phase == "ready"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "tiny ran out of memory"),
        (KeyError("odd"), "tiny could not be loaded. Something went wrong that hierchat did not expect."),
    ],
)
def test_any_error_is_said(error: Exception, said: str) -> None:
    def load(name: str, report: Report) -> ServedModel:
        raise error

    status = start(ModelSlot(catalogue("tiny"), load=load), "tiny")
    assert status.phase == "failed"
    assert status.message.startswith(said)


def test_a_failing_replacement_keeps_the_model(slot: ModelSlot, store: Store) -> None:
    start(slot, "tiny")
    status = start(slot, "broken")
    assert status == SlotStatus("tiny", "ready", message="broken cannot be fetched. tiny goes on answering.")
    assert status.exact is True
    assert talk_on(store, slot).send("hello").finish == "length"


def test_the_status_tells_the_phases() -> None:
    said: list[Progress] = []
    seen: list[SlotStatus] = []
    asked, go = threading.Event(), threading.Event()

    def load(name: str, report: Report) -> ServedModel:
        asked.set()
        go.wait()
        for phase in ("downloading", "converting", "loading"):
            report(Progress(phase, 1, 2, name))
            seen.append(slot.status)
        return served(name)

    slot = ModelSlot(catalogue("tiny"), said.append, load)
    slot.start("tiny")
    asked.wait()
    assert slot.status.phase == "loading"
    go.set()
    settle(slot)
    assert (
        [status.phase for status in seen]
        == ["downloading", "converting", "loading"]
        == [p.phase for p in said]
    )
    assert seen[0] == SlotStatus("tiny", "downloading", 1, 2, "tiny")


def test_no_model_leaves_in_the_middle_of_a_reply(slot: ModelSlot, store: Store) -> None:
    start(slot, "tiny")
    talk = talk_on(store, slot)
    frames = talk.sending("hello")
    for frame in frames:
        if frame.phase == "writing":
            break
    slot.start("another")
    last = list(frames)[-1]
    assert last.finish == "length"
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    assert settle(slot).status.name == "another"


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


def waits(slot: ModelSlot, status: SlotStatus) -> None:
    end = time.monotonic() + 60
    while slot.status != status:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_waits_for_a_reply_says_so(slot: ModelSlot, store: Store) -> None:
    start(slot, "tiny")
    reply = Reply(talk_on(store, slot))
    slot.start("another")
    waits(slot, SlotStatus("another", "waiting"))
    reply.end()
    assert settle(slot).status == SlotStatus("another", "ready")
    reply = Reply(talk_on(store, slot))
    slot.eject()
    waits(slot, SlotStatus("another", "leaving"))
    reply.end()
    waits(slot, SlotStatus())
    assert slot.model is None


def test_what_waits_for_a_reply_can_be_cancelled(slot: ModelSlot, store: Store) -> None:
    start(slot, "tiny")
    present, reply = slot.model, Reply(talk_on(store, slot))
    for begin, waiting in (
        (partial(slot.start, "another"), SlotStatus("another", "waiting")),
        (slot.eject, SlotStatus("tiny", "leaving")),
    ):
        begin()
        waits(slot, waiting)
        slot.cancel()
        with slot._starting:  # what waited has given up
            pass
        waits(slot, SlotStatus("tiny", "ready"))
    reply.end()
    slot.cancel()  # nothing waits any more
    assert settle(slot).model is present
    assert talk_on(store, slot).send("hello").finish == "length"


def test_another_choice_takes_the_place_of_the_one_that_waits(slot: ModelSlot, store: Store) -> None:
    start(slot, "tiny")
    reply = Reply(talk_on(store, slot))
    slot.start("broken")
    waits(slot, SlotStatus("broken", "waiting"))
    slot.start("another")
    waits(slot, SlotStatus("another", "waiting"))
    reply.end()
    assert settle(slot).status == SlotStatus("another", "ready")


def test_a_model_that_cannot_run_leaves_the_present_one_in_its_place(store: Store) -> None:
    loaded: list[str] = []

    def load_and_note(name: str, report: Report) -> ServedModel:
        loaded.append(name)
        return load(name, report)

    slot = ModelSlot(catalogue("tiny", "another"), load=load_and_note, prepare=refuse)
    start(slot, "tiny")
    present = slot.model
    talk = talk_on(store, slot)
    reply = Reply(talk)
    status = start(slot, "another")  # while the reply is written
    assert status == SlotStatus("tiny", "ready", message="another cannot run here. tiny goes on answering.")
    assert status.exact is True
    assert reply.end().finish == "length"
    assert slot.model is present
    assert loaded == ["tiny"]
    assert talk.send("hello").finish == "length"
    assert start(slot, "tiny").message == ""


def test_the_present_model_answers_while_another_is_fetched(store: Store) -> None:
    asked, go = threading.Event(), threading.Event()

    def prepare(name: str, report: Report) -> None:
        report(Progress("downloading", 1, 2, name))
        asked.set()
        go.wait()

    slot = ModelSlot(catalogue("tiny", "another"), load=load, prepare=prepare)
    start(slot, "tiny")  # nothing answers yet: nothing is done beforehand
    talk = talk_on(store, slot)
    slot.start("another")
    asked.wait()
    assert slot.status == SlotStatus("another", "downloading", 1, 2, "another")
    assert slot.model is not None
    last = talk.send("hello")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    go.set()
    assert settle(slot).status.name == "another"
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

    def load_and_note(name: str, report: Report) -> ServedModel:
        if not present:
            fetch(name, report)
        loaded.append(name)
        return served(name)

    slot = ModelSlot(catalogue("tiny", "long", "queued", "another"), load=load_and_note, prepare=fetch)
    if present:
        start(slot, "tiny")
    slot.start("long")
    assert asked.wait(10)
    slot.start("queued")
    slot.start("another")
    assert slot.status == SlotStatus("another", "loading", message="another")
    go.set()
    assert settle(slot).status == SlotStatus("another", "ready")
    assert loaded == ["tiny"] * present + ["another"]


def test_a_real_file_is_looked_at_before_the_present_model_leaves(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and no more")
    present = served("tiny")
    entry = ModelEntry(name="broken", source=ModelSource(gguf=Gguf(path=tmp_path / "broken.gguf")))
    both = Catalogue(models={**catalogue("tiny").models, "broken": entry}, default="tiny")
    slot = ModelSlot(both)
    monkeypatch.setattr(slot, "_load", lambda name, report: present)
    start(slot, "tiny")
    status = start(slot, "broken")
    assert (status.name, status.phase) == ("tiny", "ready")
    assert "broken.gguf is no whole GGUF file" in status.message
    assert slot.model is present
