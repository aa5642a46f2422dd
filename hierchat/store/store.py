"""The store: all that hierchat remembers, in one file."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from hierchat.store.conversations import Conversations
from hierchat.store.deletion import Deletion
from hierchat.store.drafting_texts import DraftingTexts
from hierchat.store.errors import StoreError, translated
from hierchat.store.forks import Forks
from hierchat.store.learned import LearnedValues
from hierchat.store.over_time import OverTime
from hierchat.store.replies import Replies
from hierchat.store.turns import Turns


class Store(Conversations, Deletion, Forks, Replies, Turns, DraftingTexts, LearnedValues, OverTime):
    """One SQLite file, usable from any thread and by several processes at once.

    Every method may raise DatabaseLocked, DatabaseCorrupt or DatabaseUnwritable; what it was writing is then
    undone as a whole, and the store stays usable.
    """

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = 5.0) -> Self:
        """Open the file, or create it and its folder; mark replies that a crash cut off as interrupted, delete what a
        crash kept from being deleted.

        `busy_seconds` is how long any method waits for another program to release the file. Raises
        DatabaseNewer, DatabaseLocked, DatabaseCorrupt or DatabaseUnwritable; the file is then as it was.
        """
        store = cls(path, busy_seconds)
        try:
            store.recover()
            store.delete_abandoned()
        except BaseException:
            store.close()
            raise
        return store

    def backup(self, path: Path) -> None:
        """Write a compact copy of the whole database, all users', readable by its owner only.

        Raises StoreError if `path` exists, DatabaseUnwritable if it cannot be written.
        """
        path = path.absolute()
        try:
            with translated(path):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except StoreError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise StoreError(f"{path} already exists. Choose another name for the backup.") from error
            raise
        try:
            with translated(path):
                self._database().execute("VACUUM INTO ?", [str(path)])
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
