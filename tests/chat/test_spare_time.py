"""What was opened is read before its question is asked, and not again after a restart; no word changes by either."""

import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat import spare_time
from hierchat.chat.spare_time import NextQuestion
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from hierchat.store.records import Attachment
from tests.chat.conftest import Talk, talk_on
from tests.testing.tiny import block_model
from tests.testing.tiny_chat import CONTEXT, END, Steady, model, ready_slot, tokenizer

LONG = "Tell me of the rivers of this country and of all that lives there, from its spring to its end. " * 3
FILE = Attachment("rivers.txt", 60, "All of the rivers end somewhere. Some end in a lake.")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_time, "SECONDS", 0.001)


def read_ahead(talk: Talk, *files: Attachment, new: bool = False) -> int:
    """The tokens in the slots once all is read."""
    chat = None if new else talk.conversation
    talk.service.read_ahead(NextQuestion(talk.user, chat, files=files))
    talk.service._reading._thread.wait()
    return len(talk.sequence.tokens)


def test_a_chat_that_was_opened_is_read_before_the_question(talk: Talk) -> None:
    first = talk.send(LONG)
    talk.model.local.clear()  # as after a start
    held = read_ahead(talk)
    assert LONG.strip() in talk.held
    frames = list(talk.sending("And its fish?", first.message_id))
    assert min(frame.prompt_read for frame in frames if frame.phase == "reading") >= held - 1
    words = talk.tokens(frames[-1])
    talk.model.local.clear()
    question = talk.store.messages.get(talk.user, frames[-1].message_id or 0).parent_id
    assert talk.tokens(talk.again(question or 0, frames[-1].message_id)) == words


@pytest.mark.parametrize("new", [False, True])
def test_files_are_read_before_they_are_sent(talk: Talk, new: bool) -> None:
    talk.store.users.set_notes(talk.user, "I live at the sea.")
    held = read_ahead(talk, FILE, new=new)
    assert "I live at the sea." in talk.held
    assert FILE.text in talk.held
    frames = list(talk.sending("Where?", files=[FILE]))
    assert min(frame.prompt_read for frame in frames if frame.phase == "reading") >= held - 1


def test_nothing_is_read_for_who_switched_it_off(talk: Talk) -> None:
    talk.send(LONG)
    talk.model.local.clear()
    talk.service.choose_reading_ahead(talk.user, on=False)
    assert read_ahead(talk) == 0
    talk.service.choose_reading_ahead(talk.user, on=True)
    assert read_ahead(talk) > 0


def test_files_leave_memory_when_incognito_is_switched_on(talk: Talk) -> None:
    read_ahead(talk, FILE, new=True)
    assert FILE.text in talk.held
    talk.service.forget_read_ahead(talk.user)
    give_up = time.monotonic() + 60
    while FILE.text in talk.held and time.monotonic() < give_up:
        time.sleep(0.01)
    assert FILE.text not in talk.held


def test_who_asks_meanwhile_does_not_wait_for_it(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops after the piece that is being read, and goes on after the reply."""
    first = talk.send(LONG)
    talk.model.local.clear()
    engine, runs, stop = talk.model.local, list[int](), threading.Event()
    run = engine._batch._read

    def read(*how: object) -> object:
        runs.append(1)
        stop.set()
        return run(*how)

    monkeypatch.setattr(engine._batch, "_read", read)
    prompt = talk.model.prompts.tokens(LONG * 2)
    assert not engine.read_ahead(prompt, talk.user, talk.conversation, stop)
    assert len(runs) == 1
    assert 0 < len(talk.sequence.tokens) < len(prompt) - 1
    monkeypatch.undo()
    with talk.service.slot.scheduler.turn(None) as mine:
        assert mine
        talk.service.read_ahead(NextQuestion(talk.user, talk.conversation))
        assert len(talk.sequence.tokens) < len(prompt) - 1
    talk.service._reading._thread.wait()
    assert LONG in talk.held
    assert first.message_id


def test_what_cannot_be_read_ahead_is_left(talk: Talk) -> None:
    other = talk.other()
    talk.service.chats.delete(other.user, other.conversation)
    assert read_ahead(other) == 0
    settings = talk.service.chats.settings(talk.user, talk.conversation)
    with_tools = replace(settings, sampling={**settings.sampling, "tools": True})
    talk.service.chats.keep_settings(talk.user, talk.conversation, with_tools)
    assert read_ahead(talk) == 0


def test_it_can_be_switched_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERCHAT_READ_AHEAD", "0")
    talk = talk_on(store, ready_slot())
    assert read_ahead(talk, FILE) == 0
    talk.service.close()


@pytest.mark.parametrize("end", ["closed", "another"])
def test_a_long_text_is_left_if_it_is_not_wanted_any_more(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    begun, stopped = threading.Event(), list[bool]()

    def read(self: object, ids: object, user: int, chat: int | None, stop: threading.Event) -> bool:
        if stopped:
            return True
        begun.set()
        stopped.append(stop.wait(60))  # a text that takes a minute
        return False

    monkeypatch.setattr(LocalEngine, "read_ahead", read)
    talk.service.read_ahead(NextQuestion(talk.user, talk.conversation, files=[FILE]))
    assert begun.wait(60)
    if end == "closed":
        talk.service.close()
    else:
        talk.service.read_ahead(NextQuestion(talk.user, None))
        talk.service._reading._thread.wait()
    assert stopped == [True]


# After a restart


@cache
def _runner() -> CpuRunner:
    runner = CpuRunner(block_model(model()), context_length=CONTEXT, threads=2, sequences=4)
    runner.identity = "tiny"
    return runner


def _load(name: str, report: Report) -> ServedModel:
    """As after a start: nothing is in the slots."""
    engine = LocalEngine(_runner().open(), {END}, tokenizer().decode, places=1)
    engine.latency = Steady()
    return ServedModel(name, f"key of {name}", engine, PromptBuilder(tokenizer(), CONTEXT, "You help."))


def _end(talk: Talk) -> None:
    talk.service.close()
    talk.sequence.close()


def _files(store: Store) -> list[Path]:
    return [path for path in store.prefixes.path.rglob("*") if path.is_file()]


def _kept(talk: Talk) -> int:
    """Files after the keeper has written all."""
    talk.service.prefixes._thread.wait()
    return len(_files(talk.store))


def test_an_old_chat_is_not_read_again(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(places / "DATA" / "hierchat.db") as store:
        first = talk_on(store, ready_slot(_load))
        reply = first.send(LONG)
        pages, end = divmod(len(first.sequence.tokens), 128)
        assert _kept(first) == pages + (end >= 16) > 0
        expected = first.send("And its fish?", reply.message_id)
        words = first.tokens(expected)
        _end(first)
        second = talk_on(store, ready_slot(_load))
        second.conversation = first.conversation
        read: list[int] = []
        monkeypatch.setattr(CpuRunner, "run", _counting(CpuRunner.run, read))
        question = store.messages.get(first.user, expected.message_id or 0).parent_id
        again = second.again(question or 0, expected.message_id)
        assert second.tokens(again) == words
        assert 0 < sum(read) < 24 + 24
        _end(second)


def _counting(run: Any, read: list[int]) -> Any:
    def counted(self: Any, blocks: Any, **how: Any) -> Any:
        read.extend(len(block.tokens) for block in blocks if not block.logits)
        return run(self, blocks, **how)

    return counted


def test_incognito_chats_and_guests_are_never_written(places: Path) -> None:
    with Store.open(places / "DATA" / "hierchat.db") as store:
        talk = talk_on(store, ready_slot(_load))
        talk.conversation = store.chats.begin_incognito(talk.user)
        talk.send(LONG)
        assert _kept(talk) == 0
        guest = talk.other(store.guests.begin())
        guest.send(LONG)
        assert _kept(guest) == 0
        _end(talk)


def test_a_deleted_document_takes_what_was_read_of_its_user_along(places: Path) -> None:
    with Store.open(places / "DATA" / "hierchat.db") as store:
        talk = talk_on(store, ready_slot(_load))
        talk.send(LONG)
        assert _kept(talk)
        document, documents = places / "rivers.txt", talk.service.documents
        document.write_text("All of the rivers end somewhere.")
        documents.read(talk.user, talk.conversation, [document], to_project=False, ours=False)
        documents.readings[talk.user].ended.wait()
        (found,) = documents.listed(talk.user, talk.conversation)
        documents.delete(talk.user, found.id)
        assert _files(store) == []
        assert talk.sequence.tokens == []
        _end(talk)
