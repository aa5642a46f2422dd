"""The store: all that hierchat remembers, in one file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from hierchat.store.chats import Conversations, Tags, Titles
from hierchat.store.comparisons import Comparisons
from hierchat.store.connection import corrupt, new_file, translated
from hierchat.store.deletion import Privacy
from hierchat.store.generated import SelfTexts, WhileAway
from hierchat.store.history import DraftingTexts, LearnedValues, ToldDrafters
from hierchat.store.portable import Forks, Portable
from hierchat.store.presets import Presets
from hierchat.store.replies import Replies
from hierchat.store.turns import ModelSpeeds, OverTime, Turns
from hierchat.store.users import Accounts, Guests, Keys


class Store(
    Guests,
    Accounts,
    Comparisons,
    Conversations,
    Privacy,
    Tags,
    Titles,
    Forks,
    Presets,
    Replies,
    Turns,
    DraftingTexts,
    LearnedValues,
    SelfTexts,
    OverTime,
    ModelSpeeds,
    Portable,
    WhileAway,
    Keys,
    ToldDrafters,
):
    """One SQLite file, usable from any thread and by several processes at once.

    Every method may raise DatabaseLocked, DatabaseCorrupt or DatabaseUnwritable; what it was writing is then
    undone as a whole, and the store stays usable.
    """

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = 5.0) -> Self:
        """Open the file, or create it and its folder; mark replies that a crash cut off as interrupted, delete what a
        crash kept from being deleted, guests too.

        `busy_seconds` is how long any method waits for another program to release the file. Raises
        DatabaseNewer, DatabaseLocked, DatabaseCorrupt or DatabaseUnwritable; the file is then as it was.
        """
        store = cls(path, busy_seconds)
        try:
            store.recover()
            store.delete_abandoned()
            store.forget_abandoned_guests()
            store.fold()  # a process that was killed left its log
        except BaseException:
            store.close()
            raise
        return store

    def backup(self, path: Path) -> None:
        """Write a copy of the whole database, all users', readable by its owner only. The chat can go on meanwhile.

        Raises StoreError if `path` exists or the copy is damaged, DatabaseUnwritable if it cannot be written.
        """
        with new_file(path) as part, translated(path), self._connected() as db:
            with closing(sqlite3.connect(part)) as copy:
                # In one step: a reply that is written meanwhile would have it begin again between two.
                db.conn.backup(copy)
                copy.execute("DELETE FROM openings")
                copy.commit()
                # A file that is carried elsewhere must need no others beside it.
                copy.execute("PRAGMA journal_mode = DELETE").fetchone()
                (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise corrupt(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
