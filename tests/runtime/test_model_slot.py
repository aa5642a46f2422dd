"""The model that answers: loading, failing, replacing."""

import threading

import pytest

from hierchat.chat.frames import Frame
from hierchat.models.progress import FetchError, ModelError, Progress, Report, UnsupportedError
from hierchat.runtime.model_slot import ModelSlot, SlotStatus
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.tiny_chat import catalogue, served, settle
from tests.testing.waiting import until

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


def test_a_model_is_loaded_beside_and_stays_where_another_fails(slot: ModelSlot, store: Store) -> None:
    assert start(slot, "broken") == SlotStatus("broken", "failed", message="broken cannot be fetched.")
    assert slot.model is None
    assert start(slot, "tiny") == SlotStatus("tiny", "ready")
    assert slot.status.exact is True
    assert slot.model.name == "tiny"
    with pytest.raises(ModelError, match="Did you mean tiny"):
        slot.start("tinny")
    assert slot.status == SlotStatus("tiny", "ready")
    status = start(slot, "broken")
    assert status == SlotStatus("tiny", "ready", message="broken cannot be fetched. tiny goes on answering.")
    assert status.exact is True
    assert talk_on(store, slot).send("hello").finish == "length"


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


def test_the_present_model_answers_while_another_is_fetched(store: Store) -> None:
    """And the status tells the phases."""
    asked, go, seen = threading.Event(), threading.Event(), list[SlotStatus]()

    def prepare(name: str, report: Report) -> None:
        report(Progress("downloading", 1, 2, name))
        asked.set()
        go.wait()
        for phase in ("converting", "loading"):
            report(Progress(phase, 1, 2, name))
            seen.append(slot.status)

    slot = ModelSlot(catalogue("tiny", "another"), load, prepare=prepare)
    start(slot, "tiny")  # nothing answers yet: nothing is done beforehand
    assert not asked.is_set()
    talk = talk_on(store, slot)
    slot.start("another")
    asked.wait()
    assert slot.status == SlotStatus("another", "downloading", 1, 2, "another")
    assert slot.model is not None
    last = talk.send("hello")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    go.set()
    assert settle(slot).status.name == "another"
    assert [status.phase for status in seen] == ["converting", "loading"]
    last = talk.send("hello again")
    assert talk.store.replies.turn(talk.user, last.message_id).begun.model == "another"


class Reply:
    """A reply in another thread, held up in its middle until it may go on."""

    def __init__(self, talk: Talk) -> None:
        self.frames = talk.sending("hello")
        self.begun = next(frame for frame in self.frames if frame.phase == "writing")

    def end(self) -> Frame:
        return list(self.frames)[-1]


def test_what_waits_for_a_reply_can_be_replaced(slot: ModelSlot, store: Store) -> None:
    """No model leaves in the middle of a reply."""

    def waits(status: SlotStatus) -> None:
        until(lambda: slot.status == status)

    start(slot, "tiny")
    talk = talk_on(store, slot)
    reply = Reply(talk)
    slot.start("broken")
    waits(SlotStatus("broken", "waiting"))
    slot.start("another")
    waits(SlotStatus("another", "waiting"))
    last = reply.end()
    assert last.finish == "length"
    assert store.replies.turn(talk.user, last.message_id).begun.model == "tiny"
    assert settle(slot).status == SlotStatus("another", "ready")
    assert settle(slot).model.name == "another"
    reply = Reply(talk_on(store, slot))
    slot.eject()
    waits(SlotStatus("another", "leaving"))
    reply.end()
    waits(SlotStatus())
    assert slot.model is None


def test_a_model_that_cannot_run_leaves_the_present_one_in_its_place(store: Store) -> None:
    loaded: list[str] = []

    def load_and_note(name: str, report: Report) -> ServedModel:
        loaded.append(name)
        return load(name, report)

    def refuse(name: str, report: Report) -> None:
        if name == "another":
            raise UnsupportedError("another cannot run here.")

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


def test_a_model_that_was_replaced_while_it_loaded_is_not_reported_as_ready() -> None:
    """Who waits for the model asked for last must not take the one before for it."""
    seen: list[SlotStatus] = []

    class WatchedSlot(ModelSlot):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if isinstance(value, SlotStatus):
                seen.append(value)

    loading, go = threading.Event(), threading.Event()

    def slowly(name: str, report: Report) -> ServedModel:
        if name == "another":
            loading.set()
            assert go.wait(10)
        return load(name, report)

    slot = WatchedSlot(catalogue("tiny", "another"), load=slowly)
    start(slot, "tiny")
    slot.start("another")
    assert loading.wait(10)
    seen.clear()
    slot.start("tiny")
    go.set()
    until(lambda: slot.status == SlotStatus("tiny", "ready"))
    assert slot.model.name == "tiny"
    assert [status for status in seen if status.phase == "ready"] == [SlotStatus("tiny", "ready")]


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
