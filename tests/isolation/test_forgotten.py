"""What is deleted is in no byte of any file: neither its words nor its tokens, in any form in which they are stored."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hierchat import logs
from hierchat.store import Store
from hierchat.store.records import Attachment
from tests.chat.conftest import Talk, talk_on
from tests.testing.tiny_chat import ready_slot, tokenizer

WORD = "xylophonist"
KEPT = "glockenspielist"
WINDOW = 5
"""Tokens in a row that tell a text."""


def forms(tokens: list[int]) -> set[bytes]:
    """Runs of tokens as columns, indexes and JSON hold them, or might."""
    found: set[bytes] = set()
    for at in range(len(tokens) - WINDOW + 1):
        run = tokens[at : at + WINDOW]
        found |= {np.array(run, kind).tobytes() for kind in ("<i4", "<i8", "<u2", ">i4")}
        found |= {", ".join(map(str, run)).encode(), ",".join(map(str, run)).encode()}
    return found


def files(folder: Path, leaving_out: str = "") -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not (leaving_out and leaving_out in file.parts)
    }


def fill(talk: Talk, folder: Path, word: str, seed: int) -> tuple[list[bytes], list[list[int]]]:
    """Let a chat leave traces wherever one can; words and tokens that tell them."""
    service, store, user = talk.service, talk.store, talk.user
    attached = Attachment(f"{word}.txt", 20, f"all about a {word} in a file")
    first = talk.send(f"Tell me of the {word}", files=[attached], seed=seed, max_new_tokens=60)
    second = talk.send("And more of it", first.message_id, seed=seed + 1, max_new_tokens=60)
    said = [store.replies.tokens(user, frame.message_id or 0) for frame in (first, second)]
    asked = [tokenizer().encode(f"Tell me of the {word}")]
    edited = store.messages.edit_reply(user, second.message_id or 0, f"The {word} sleeps")
    list(talk.comparing(f"Compare a {word}", edited, max_new_tokens=12))
    if not store.chats.get(user, talk.conversation).title.startswith("Incognito"):
        store.chats.rename(user, talk.conversation, f"Of a {word}")
    document = folder / "elsewhere" / f"{word}.txt"
    document.parent.mkdir(exist_ok=True)
    document.write_text(f"A document of a {word}, which is known for bars of wood.\n" * 3)
    service.documents.read(user, talk.conversation, [document], to_project=False, ours=False)
    service.documents.readings[user].ended.wait()
    shutil.rmtree(document.parent)  # the user's own file
    logs.error_message(ValueError(f"no {word} in {said[0]}"))
    service.completions.keep(talk.model, now=True)
    held = service._histories.held(user, talk.model.model_key, tokenizer().encode)
    held.wait()
    may_keep = store.prefixes.may_keep(user, talk.conversation)
    assert may_keep == (store.chats.get(user, talk.conversation).id in _listed(store, user))
    if may_keep:  # files of what was read, as engine/cpu/prefixes.py writes them, though with words
        read = store.prefixes.path / str(user) / str(talk.conversation)
        read.mkdir(parents=True)
        (read / "page").write_text(f"read of a {word}")
    return [word.encode(), word[::-1].encode()], [*said, *asked]


def _listed(store: Store, user: int) -> set[int]:
    """Chats of a user that are neither incognito nor a guest's."""
    with store.connection.read() as db:
        guests = "SELECT id FROM users WHERE name LIKE 'guest-%'"
        rows = db.execute(
            f"SELECT id FROM conversations WHERE NOT incognito AND user_id = ? AND user_id NOT IN ({guests})",
            [user],
        )
        return {id for (id,) in rows}


@pytest.fixture
def place(places: Path) -> Path:
    """All folders of the program, with its log."""
    logs.set_up(True)
    return places


@pytest.mark.parametrize("how", ["chat", "everything", "incognito", "guest"])
def test_nothing_of_it_is_left(place: Path, how: str) -> None:
    (place / "DATA").mkdir(exist_ok=True)  # a thread that an earlier test left may have looked there
    with Store.open(place / "DATA" / "hierchat.db") as store:
        mine = talk_on(store, ready_slot())
        kept_words, kept = fill(mine, place, KEPT, 70)
        chats = mine.service.chats
        talk = mine.other()
        if how == "incognito":
            talk.conversation = chats.create(talk.user, incognito=True)
        elif how in ("everything", "guest"):
            talk = mine.other(store.guests.begin() if how == "guest" else "ben")
        words, tokens = fill(talk, place, WORD, 7)
        backup = store.backups.make()
        told = set.union(*map(forms, tokens)) - set.union(*map(forms, kept))
        before = b"".join(files(place).values())
        assert all(word in before for word in words[:1])
        assert sum(form in before for form in told) > 60  # four replies and texts, each in one form at least
        with store.connection.read() as db:
            learned = [
                value for (value,) in db.execute("SELECT value FROM learned WHERE user_id = ?", [talk.user])
            ]
        held = backup.read_bytes()
        assert (words[0] in held) == (how in ("chat", "everything"))
        if how == "chat":
            store.chats.hide(talk.user, talk.conversation)
            store.chats.delete_hidden([talk.conversation])
        elif how == "incognito":
            store.chats.end_incognito(talk.user, talk.conversation)
        elif how == "guest":
            store.guests.end()
        else:
            assert mine.service.forget_user(talk.user)
        # Of a chat, backups by day tell until seven newer ones are there (docs/import.md).
        there = files(place, "backups" if how == "chat" else "")
        assert any(name.endswith(".log") for name in there)
        for name, data in there.items():
            assert [word for word in words if word in data] == [], name
            assert [form for form in told if form in data] == [], name
            assert [value for value in learned if how != "incognito" and value[8:40] in data] == [], name
        assert kept_words[0] in there["DATA/hierchat.db"]
        pages = [name for name in there if ".prefixes" in name]
        assert pages == [f"DATA/hierchat.db.prefixes/{mine.user}/{mine.conversation}/page"]
        again = mine.other()
        assert again.send("Tell me of it", max_new_tokens=8).finish == "length"
        mine.service.close()
    there = files(place, "backups" if how == "chat" else "")
    assert [
        name for name, data in there.items() if words[0] in data or any(form in data for form in told)
    ] == []
