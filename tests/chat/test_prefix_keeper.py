"""A service keeps what its model has read, and the service after a restart does not read it again."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat import prefix_keeper
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.chat.conftest import Talk, talk_on
from tests.testing.tiny import block_model
from tests.testing.tiny_chat import CONTEXT, END, Steady, model, ready_slot, tokenizer

LONG = "Tell me of the rivers of this country and of all that lives there, from its spring to its end. " * 3


@cache
def _runner() -> CpuRunner:
    runner = CpuRunner(block_model(model()), context_length=CONTEXT, threads=2, sequences=4)
    runner.identity = "tiny"
    return runner


def _load(name: str, report: Report) -> ServedModel:
    """As after a start: nothing is in the slots."""
    engine = LocalEngine(_runner().open(), {END}, tokenizer().decode, places=1)
    engine.latency = Steady()
    return ServedModel(name, f"key of {name}", engine, PromptBuilder(tokenizer(), CONTEXT, "You help."), 1.0)


def _begin(store: Store, monkeypatch: pytest.MonkeyPatch) -> Talk:
    monkeypatch.setattr(prefix_keeper, "SECONDS", 0.001)
    return talk_on(store, ready_slot(_load))


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
        first = _begin(store, monkeypatch)
        reply = first.send(LONG)
        pages, end = divmod(len(first.sequence.tokens), 128)
        assert _kept(first) == pages + (end >= 16) > 0
        expected = first.send("And its fish?", reply.message_id)
        words = first.tokens(expected)
        _end(first)
        second = _begin(store, monkeypatch)
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


def test_incognito_chats_and_guests_are_never_written(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(places / "DATA" / "hierchat.db") as store:
        talk = _begin(store, monkeypatch)
        talk.conversation = store.chats.begin_incognito(talk.user)
        talk.send(LONG)
        assert _kept(talk) == 0
        guest = talk.other(store.guests.begin())
        guest.send(LONG)
        assert _kept(guest) == 0
        _end(talk)


def test_a_deleted_document_takes_what_was_read_of_its_user_along(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(places / "DATA" / "hierchat.db") as store:
        talk = _begin(store, monkeypatch)
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
