"""Keep the users' histories: in memory while they are needed, in an SQLite file always, and corpora beside them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.growing.kernel_arrays import CORPUS, SEED
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.drafting.vllm.drafter_settings import PREFIX, DrafterSettingsError

MEMORY = 2**30
"""Bytes of histories in memory from which on those go that were not used for longest."""

_log = logging.getLogger("vllm.hierchat")


FILE_FORM = 1
"""Version of the file, in its user_version."""
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
    """The file of users' histories cannot be used; the text says why and what to do."""


class UserStateFile:
    """Stores each user's replies and what was learned of their drafts, in a separate file. Calls must not overlap."""

    def __init__(self, file: Path) -> None:
        """Open the file, or make it, so that only its owner can read it. Raises UserStateFileError."""
        self.file = file
        with self._translated():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._db = sqlite3.connect(
                file, timeout=_BUSY_SECONDS, isolation_level="IMMEDIATE", check_same_thread=False
            )
            (form,) = self._db.execute("PRAGMA user_version").fetchone()
            (owner,) = self._db.execute("PRAGMA application_id").fetchone()
            tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if (tables or form) and (owner, form) != (_APPLICATION, FILE_FORM):
                other = owner == _APPLICATION
                what = "was written by another version of hierchat" if other else "is not its file"
                raise UserStateFileError(f"{file} {what}. Name another file in HIERCHAT_DRAFTER_DB.")
            for setting in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
                self._db.execute(f"PRAGMA {setting}")
            if not tables:
                self._db.executescript(
                    f"BEGIN; {_TABLES} PRAGMA application_id = {_APPLICATION};"
                    f" PRAGMA user_version = {FILE_FORM}; COMMIT;"
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
        with self._translated(), self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO replies (user, model, reply, tokens) VALUES (?, ?, ?, ?)",
                [user, model, reply, np.asarray(tokens, _TOKEN).tobytes()],
            )
            self._db.execute("INSERT OR REPLACE INTO learned VALUES (?, ?, ?)", [user, model, acceptance])

    def drop(self, user: str, model: str, replies: Iterable[str]) -> None:
        """Delete replies for which there is no more room."""
        with self._translated(), self._db:
            self._db.executemany(
                "DELETE FROM replies WHERE user = ? AND model = ? AND reply = ?",
                [(user, model, reply) for reply in replies],
            )

    def forget(self, user: str, replies: Sequence[str] | None) -> None:
        """Delete these replies of all models, or all of the user if None; with the last reply, what was learned."""
        with self._translated(), self._db:
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
        with self._translated():
            return {name for (name,) in self._db.execute("SELECT reply FROM replies WHERE user = ?", [user])}

    def held(self, model: str) -> tuple[int, int]:
        with self._translated():
            replies, size = self._db.execute(
                "SELECT count(*), coalesce(sum(length(tokens)), 0) FROM replies WHERE model = ?", [model]
            ).fetchone()
        return replies, size // _TOKEN.itemsize

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            why = "it is damaged, or its disk is full or fails"
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                why = "another program holds it"
            raise UserStateFileError(
                f"The drafter's file {self.file} cannot be used ({why}). Free some space, close what else holds it, or "
                "name another one in HIERCHAT_DRAFTER_DB."
            ) from error


@dataclass(eq=False, slots=True)
class UserState:
    """Hold the history of one user, and what was learned of their drafts."""

    name: str
    history: Source = field(default_factory=Source)
    acceptance: Acceptance = field(default_factory=Acceptance)
    writing: int = 0
    """Replies that are being written."""
    places: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)
    """Where each reply stands in the history, oldest first: position and length."""
    tokens: int = 0

    @property
    def index(self) -> SuffixIndex:
        return self.history.index

    def add(self, reply: str, tokens: NDArray[np.int32]) -> None:
        self.remove([reply])
        self.places[reply] = (self.index.append(tokens), tokens.size)
        self.tokens += tokens.size

    def remove(self, replies: Sequence[str]) -> None:
        """Forget those of `replies` that are in the history."""
        gone = [place for reply in replies if (place := self.places.pop(reply, None))]
        self.index.remove(gone)
        self.tokens -= sum(length for _, length in gone)

    def surplus(self, most: int) -> list[str]:
        """Return the oldest replies, without which the history has no more than `most` tokens."""
        found, left = list[str](), self.tokens
        for reply, (_, length) in self.places.items():
            if left <= most:
                break
            found.append(reply)
            left -= length
        return found


class UserStates:
    """Histories of one model's users. One thread reads and writes the disk in order; only `forget` and `held` wait.
    So a user's first reply may begin before the history is loaded."""

    def __init__(self, file: UserStateFile, model: str, most_tokens: int, memory: int = MEMORY) -> None:
        """Start with `most_tokens`: of one user; `memory`: bytes that all histories may take beside those in use."""
        self._file, self._model = file, model
        self._most_tokens, self._memory = most_tokens, memory
        self._users: OrderedDict[str, UserState] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "hierchat-books")
        self.trouble = ""
        """Why the file could not be used when it was last tried; empty: it could."""

    def __len__(self) -> int:
        return len(self._users)

    def begin(self, name: str) -> UserState:
        """Begin a reply of this user; count it no more in `writing` when it has ended."""
        user = self._users.get(name)
        # An index of which most is what was removed is read anew, which makes it smaller.
        worn = user and len(user.index) > 2 * (user.tokens + len(user.places)) + 65_536
        if user is None or (worn and not user.writing):
            self._make_room()
            user = self._users[name] = UserState(name)
            self._thread.submit(self._read, user)
        self._users.move_to_end(name)
        user.writing += 1
        return user

    def keep(self, user: UserState, reply: str, tokens: Sequence[int]) -> None:
        """Keep a reply that ended by itself: it drafts for its user from now on."""
        self._thread.submit(self._write, user, reply, np.array(tokens, np.int32))

    def forget(self, name: str, replies: Sequence[str] | None) -> set[str]:
        """Delete these replies of a user, or all, from memory and file; return those found."""
        return self._thread.submit(self._forget, name, replies).result()

    def held(self) -> tuple[int, int]:
        """Count replies and tokens in the file. Raises UserStateFileError."""
        return self._thread.submit(self._file.held, self._model).result()

    def wait(self) -> None:
        done: Future[None] = self._thread.submit(lambda: None)
        done.result()

    def close(self) -> None:
        """Write all that waits to be written, and end the thread."""
        self._thread.submit(self._file.close)
        self._thread.shutdown()

    def _make_room(self) -> None:
        taken = sum(user.index.nbytes for user in self._users.values())
        for name, user in list(self._users.items()):
            if taken <= self._memory:
                return
            if not user.writing:
                del self._users[name]
                taken -= user.index.nbytes

    def _read(self, user: UserState) -> None:
        try:
            found = self._file.replies(user.name, self._model)
            learned = self._file.acceptance(user.name, self._model)
        except UserStateFileError as error:
            self._note(error)
            return
        for (reply, tokens), start in zip(
            found, user.index.extend(tokens for _, tokens in found), strict=True
        ):
            user.places[reply] = (start, tokens.size)
            user.tokens += tokens.size
        if learned:
            try:
                user.acceptance = Acceptance.from_bytes(learned)
            except ValueError as error:  # of another version: it is learned anew
                _log.info("%s", error)

    def _write(self, user: UserState, reply: str, tokens: NDArray[np.int32]) -> None:
        try:
            self._file.keep(user.name, self._model, reply, tokens, user.acceptance.to_bytes())
            user.add(reply, tokens)
            if surplus := user.surplus(self._most_tokens):
                self._file.drop(user.name, self._model, surplus)
                user.remove(surplus)
            self.trouble = ""
        except UserStateFileError as error:
            self._note(error)

    def _forget(self, name: str, replies: Sequence[str] | None) -> set[str]:
        if user := self._users.get(name):
            user.remove(list(user.places) if replies is None else replies)
            if replies is None:
                user.acceptance = Acceptance()
        there = self._file.names(name)
        self._file.forget(name, replies)
        return there if replies is None else there.intersection(replies)

    def _note(self, error: UserStateFileError) -> None:
        self.trouble = str(error)
        _log.warning("%s", error)


FORM = 1
"""Version of the files that texts/build.py writes, which cannot be imported here."""
SEED_NAME = "seed"
"""What the texts that ship are called there."""


def read_corpus(folder: Path, vocabulary: int) -> Source:
    """Map a corpus into memory, its files hashed. `vocabulary`: size of the model's. Raises DrafterSettingsError."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        if meta["form"] != FORM:
            raise _unusable(folder, "another version of hierchat wrote it")
        for name in ("tokens.npy", "order.npy"):
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != meta["files"][name]["sha256"]:
                    raise _unusable(folder, f"{name} is altered")
        tokens, order = (np.load(folder / name, mmap_mode="r") for name in ("tokens.npy", "order.npy"))
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise _unusable(folder, "it is no corpus, or is damaged") from error
    if tokens.size and int(tokens.max()) >= vocabulary:
        raise _unusable(folder, "it was made for another model's tokens")
    slot = SEED if meta.get("name") == SEED_NAME else CORPUS
    return Source(slot, SuffixIndex.from_sorted(tokens, order))


def _unusable(folder: Path, reason: str) -> DrafterSettingsError:
    return DrafterSettingsError(
        f"The corpus {folder} cannot be used: {reason}. Make it anew, or leave it out of {PREFIX}STATISTICS."
    )
