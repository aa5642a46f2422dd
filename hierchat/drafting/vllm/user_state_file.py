"""The file of the drafter: what each user's replies were, and what was learned of their drafts. SQLite.

A file of its own beside the chat's database: what is here is derived from what vLLM wrote, the chat's own file stays
with the chat, and neither process waits for the other's lock.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORM = 1
"""In the file's user_version."""
_APPLICATION = 0x48436472
_TOKEN = np.dtype("<i4")
_BUSY_SECONDS = 20.0
_TABLES = """
CREATE TABLE replies (
    id INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    model TEXT NOT NULL,
    reply TEXT NOT NULL,
    tokens BLOB NOT NULL,
    UNIQUE (user, model, reply)
);
CREATE TABLE learned (
    user TEXT NOT NULL,
    model TEXT NOT NULL,
    acceptance BLOB NOT NULL,
    PRIMARY KEY (user, model)
) WITHOUT ROWID;
"""


class UserStateFileError(RuntimeError):
    """The file cannot be used; the text says why and what to do."""


class UserStateFile:
    """One connection. Its calls must not overlap."""

    def __init__(self, file: Path) -> None:
        """Opens the file, makes it if it is missing: then only its owner can read it. Raises UserStateFileError."""
        self.file = file
        with self._translated():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._db = sqlite3.connect(
                file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            (form,) = self._db.execute("PRAGMA user_version").fetchone()
            (owner,) = self._db.execute("PRAGMA application_id").fetchone()
            tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if (tables or form) and (owner, form) != (_APPLICATION, FORM):
                what = (
                    "was written by another version of hierchat"
                    if owner == _APPLICATION
                    else "is not its file"
                )
                raise UserStateFileError(f"{file} {what}. Name another file in HIERCHAT_DRAFTER_DB.")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA secure_delete = ON")
            if not tables:
                self._db.executescript(
                    f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION};"
                    f" PRAGMA user_version = {FORM}; COMMIT;"
                )

    def replies(self, user: str, model: str) -> list[tuple[str, NDArray[np.int32]]]:
        """Read names and tokens of a user's replies, oldest first."""
        with self._translated():
            found = self._db.execute(
                "SELECT reply, tokens FROM replies WHERE user = ? AND model = ? ORDER BY id", [user, model]
            ).fetchall()
        return [(reply, np.frombuffer(tokens, _TOKEN)) for reply, tokens in found]

    def acceptance(self, user: str, model: str) -> bytes | None:
        """Read what was learned of a user's drafts."""
        with self._translated():
            found = self._db.execute(
                "SELECT acceptance FROM learned WHERE user = ? AND model = ?", [user, model]
            ).fetchone()
        return found and found[0]

    def keep(
        self, user: str, model: str, reply: str, tokens: Sequence[int] | NDArray[np.int32], acceptance: bytes
    ) -> None:
        """Store a reply, in place of one of the same name."""
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO replies (user, model, reply, tokens) VALUES (?, ?, ?, ?)",
                [user, model, reply, np.asarray(tokens, _TOKEN).tobytes()],
            )
            self._db.execute("INSERT OR REPLACE INTO learned VALUES (?, ?, ?)", [user, model, acceptance])

    def drop(self, user: str, model: str, replies: Iterable[str]) -> None:
        """Delete replies for which there is no more room."""
        with self._writing():
            self._db.executemany(
                "DELETE FROM replies WHERE user = ? AND model = ? AND reply = ?",
                [(user, model, reply) for reply in replies],
            )

    def forget(self, user: str, replies: Sequence[str] | None) -> None:
        """Delete these replies of all models, or all of the user where None is given: nothing of them stays in the
        file. With the last reply goes what was learned."""
        with self._writing():
            if replies is None:
                for table in ("replies", "learned"):
                    self._db.execute(f"DELETE FROM {table} WHERE user = ?", [user])
            else:
                self._db.executemany(
                    "DELETE FROM replies WHERE user = ? AND reply = ?", [(user, reply) for reply in replies]
                )
                self._db.execute(
                    "DELETE FROM learned WHERE user = ? AND model NOT IN (SELECT model FROM replies WHERE user = ?)",
                    [user, user],
                )
        with self._translated():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def names(self, user: str) -> set[str]:
        """Return the names of all replies of a user, of all models."""
        with self._translated():
            return {name for (name,) in self._db.execute("SELECT reply FROM replies WHERE user = ?", [user])}

    def held(self, model: str) -> tuple[int, int]:
        """Count the replies of a model, and their tokens."""
        with self._translated():
            replies, size = self._db.execute(
                "SELECT count(*), coalesce(sum(length(tokens)), 0) FROM replies WHERE model = ?", [model]
            ).fetchone()
        return replies, size // _TOKEN.itemsize

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserStateFileError(self._sentence(error.strerror or str(error))) from error
        except sqlite3.Error as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_BUSY,
                sqlite3.SQLITE_LOCKED,
            )
            why = "another program holds it" if busy else "it is damaged, or its disk is full or fails"
            raise UserStateFileError(self._sentence(why)) from error

    def _sentence(self, reason: str) -> str:
        return (
            f"The drafter's file {self.file} cannot be used ({reason}). Free some space, close what else holds it, or "
            "name another one in HIERCHAT_DRAFTER_DB."
        )
