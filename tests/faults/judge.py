"""Looks at what a killed service left: whether all that users were told is there, and what they deleted is not."""

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierchat.logs import log_path
from hierchat.store import Store, StoreError
from hierchat.store.replies import TOKEN
from tests.testing.deleting import on_disk

LOST_SECONDS = 0.5
"""What may be lost of a growing reply; beside it stands what the machine itself was late."""
INDEXES = ("messages_fts", "titles_fts", "attachments_fts", "passages_fts")
COUNTED = ("asked", "answered", "brought", "served", "read", "named", "deleted", "secret")
"""What users were told that the database must show."""


def notes_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All that was noted by one or several processes, in the order of time."""
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda note: note["t"])


@dataclass
class Owed:
    """What users were told over all runs on one database, as far as it must be there or must not."""

    words: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Each question's word, and the chats that may hold it."""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Words that must be there."""
    replies: dict[int, dict[str, Any]] = field(default_factory=dict)
    grown: dict[int, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    titles: dict[int, set[str]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Chats that a kill met while they were deleted, brought back or forked."""
    secret: set[str] = field(default_factory=set)
    """Words that must not be in any byte."""
    doubtful: set[str] = field(default_factory=set)

    def take(self, notes: Iterable[dict[str, Any]]) -> None:
        for note in notes:
            chat, word = note.get("chat"), note.get("word", "")
            match note["what"]:
                case "asking":
                    self.words[word].add(chat)
                case "asked" | "served":
                    self.told[word] = note
                case "brought":
                    self.told |= dict.fromkeys(note["words"], note)
                case "read":
                    self.told[word] = note
                    self.words[word].add(chat)
                case "grown":
                    self.grown[note["id"]].append((note["t"], note["tokens"]))
                case "answered":
                    self.replies[note["id"]] = note
                case "naming":
                    self.titles.setdefault(chat, {""}).add(note["title"])
                case "named":
                    self.titles[chat] = {note["title"]}
                case "deleting" | "restoring" | "forking" | "comparing":
                    self.unsure.add(chat)
                    self.gone.discard(chat)
                case "deleted" | "gone":
                    self.gone.add(chat)
                    self.unsure.discard(chat)
                case "restored":
                    self.unsure.discard(chat)
                case "forked":
                    for chats in self.words.values():
                        if chat in chats:
                            chats.add(note["fork"])
                    self.unsure.discard(chat)
                case "forgetting":
                    self.doubtful |= set(note["words"])
                case "secret":
                    self.secret |= set(note["words"])
                    self.unsure.add(chat or 0)


def judged(
    path: Path,
    owed: Owed,
    killed: float,
    *,
    since: float | None = None,
    late: float = 0.0,
    erased: Owed | None = None,
) -> Iterator[tuple[str, Any]]:
    """Open the database as the next start does, and yield figures and ("problem", sentence). `since`: only what was
    told before is owed, for the fault takes the rest, and `erased` is what had been deleted by then; `late`: seconds
    that the machine kept the service waiting."""
    began = time.monotonic()
    try:
        store = Store.open(path)
    except StoreError as error:
        yield "problem", f"it does not open: {error}"
        return
    yield "start_seconds", time.monotonic() - began
    with store:
        with store.connection.read() as db:
            yield from _sound(db)
            yield from _found(db, owed, killed, since, late)
        yield from _index(store)
    bytes_left = on_disk(path) + b"".join(file.read_bytes() for file in log_path().parent.glob("*"))
    by_then = erased or owed
    gone = (by_then.gone & owed.gone) - owed.unsure
    words = {word for word, chats in owed.words.items() if chats and chats <= gone} | by_then.secret
    words -= owed.doubtful - by_then.secret
    for word in sorted(words):
        if word.encode() in bytes_left:
            yield "problem", f"{word}, which was deleted, stands in the file"
    yield "erased", len(words)


def _sound(db: Any) -> Iterator[tuple[str, Any]]:
    for pragma in ("integrity_check", "foreign_key_check"):
        verdict = db.execute(f"PRAGMA {pragma}").fetchall()
        if verdict not in ([], [("ok",)]):
            yield "problem", f"{pragma}: {verdict[:3]}"
    for left in (
        "messages WHERE state = 'writing'",
        "waiting",
        "conversations WHERE hidden_by IS NOT NULL",
    ):
        if db.execute(f"SELECT count(*) FROM {left}").fetchone()[0]:
            yield "problem", f"left over: {left}"


def _found(db: Any, owed: Owed, killed: float, since: float | None, late: float) -> Iterator[tuple[str, Any]]:
    rows = db.execute("SELECT text FROM messages UNION ALL SELECT text FROM passages").fetchall()
    texts = "\n".join(text for (text,) in rows)
    chats = dict(db.execute("SELECT id, title FROM conversations").fetchall())

    def is_owed(note: dict[str, Any]) -> bool:
        return since is None or note["t"] < since

    for chat in owed.gone - owed.unsure if since is None else ():
        if chat in chats:
            yield "problem", f"chat {chat}, which was deleted, is there"
    for word, note in owed.told.items():
        places = owed.words.get(word, set())
        deleted = bool(places & (owed.gone | owed.unsure)) or word in owed.secret | owed.doubtful
        if word not in texts and is_owed(note) and not deleted:
            yield "problem", f"{note['what']} {word}: lost"
    for chat, titles in owed.titles.items():
        given = "" not in titles and chat in chats and chat not in owed.unsure  # empty: never told of one
        if since is None and given and chats[chat] not in titles:
            yield "problem", f"chat {chat} is called {chats[chat]!r}, not {titles}"
    # Of a chat that was deleted and brought back or killed meanwhile, what is there is whole; else nothing is.
    logged = {
        id: (text, len(ids) // TOKEN.itemsize, state)
        for id, text, ids, state in db.execute(
            "SELECT id, text, ids, state FROM messages JOIN token_log ON message_id = id"
        ).fetchall()
    }
    for id, length in db.execute("SELECT message_id, sum(length) FROM spans GROUP BY message_id").fetchall():
        if logged[id][1] != length:
            yield "problem", f"reply {id}: {logged[id][1]} tokens, sources of {length}"
    for id, note in list(owed.replies.items()):
        if not is_owed(note) or note["chat"] not in chats:
            continue
        if logged.get(id, ("", 0))[:2] != (note["text"], note["tokens"]):
            yield "problem", f"reply {id}: told whole, and is not: {note}"
            del owed.replies[id]
    lost = 0.0
    for id, frames in owed.grown.items() if since is None else ():
        there = logged.get(id, ("", 0, ""))
        if there[2] == "interrupted" and id not in owed.replies:
            shown = [at for at, tokens in frames if tokens > there[1]]
            lost = max(lost, killed - min(shown, default=killed))
            yield "cut", 1
    owed.grown.clear()
    yield "lost_seconds", lost
    if lost > LOST_SECONDS + late:
        yield "problem", f"{lost:.2f} s of a growing reply are lost, and the machine was late by {late:.2f} s"


def _index(store: Store) -> Iterator[tuple[str, Any]]:
    """The search is what the texts are."""
    with store.connection.write() as db:
        for name in INDEXES:
            try:
                db.execute(f"INSERT INTO {name} ({name}) VALUES ('integrity-check')")
            except sqlite3.DatabaseError as error:
                yield "problem", f"{name}: {error}"
