"""The users' histories: in memory while they are needed, in the file always.

Nothing here waits for the disk but `forget` and `held`: one thread reads and writes, in the order in which it was
asked. So a user's first reply may begin before the history is there, and goes on with it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.growing.kernel_arrays import CORPUS, SEED
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.drafting.vllm.drafter_settings import PREFIX, DrafterSettingsError
from hierchat.drafting.vllm.user_state_file import UserStateFile, UserStateFileError

MEMORY = 2**30
"""Bytes of histories in memory from which on those go that were not used for longest."""

_log = logging.getLogger("vllm.hierchat")


@dataclass(eq=False, slots=True)
class UserState:
    """What belongs to one user."""

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

    @property
    def worn(self) -> bool:
        """Whether most of the index is what was removed: reading it anew makes it smaller."""
        return len(self.index) > 2 * (self.tokens + len(self.places)) + 65_536

    def add(self, reply: str, tokens: NDArray[np.int32]) -> None:
        self.remove([reply])
        self.places[reply] = (self.index.append(tokens), tokens.size)
        self.tokens += tokens.size

    def remove(self, replies: Sequence[str]) -> None:
        """Those of them that are there."""
        gone = [place for reply in replies if (place := self.places.pop(reply, None))]
        self.index.remove(gone)
        self.tokens -= sum(length for _, length in gone)

    def surplus(self, most: int) -> list[str]:
        """The oldest replies, without which there are no more than `most` tokens."""
        found, left = list[str](), self.tokens
        for reply, (_, length) in self.places.items():
            if left <= most:
                break
            found.append(reply)
            left -= length
        return found


class UserStates:
    """The users of one model."""

    def __init__(self, file: UserStateFile, model: str, most_tokens: int, memory: int = MEMORY) -> None:
        """`most_tokens`: of one user. `memory`: bytes that all histories may take beside those in use."""
        self._file, self._model = file, model
        self._most_tokens, self._memory = most_tokens, memory
        self._users: OrderedDict[str, UserState] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "hierchat-books")
        self.trouble = ""
        """Why the file could not be used when it was last tried; empty: it could."""

    def __len__(self) -> int:
        """Users in memory."""
        return len(self._users)

    def begin(self, name: str) -> UserState:
        """Begin a reply of this user; call `end` behind it."""
        user = self._users.get(name)
        if user is None or (user.worn and not user.writing):
            self._make_room()
            user = self._users[name] = UserState(name)
            self._thread.submit(self._read, user)
        self._users.move_to_end(name)
        user.writing += 1
        return user

    def end(self, user: UserState) -> None:
        """End a reply, whatever became of it."""
        user.writing -= 1

    def keep(self, user: UserState, reply: str, tokens: Sequence[int]) -> None:
        """Keep a reply that ended by itself: it drafts for its user from now on."""
        self._thread.submit(self._write, user, reply, np.array(tokens, np.int32))

    def forget(self, name: str, replies: Sequence[str] | None) -> set[str]:
        """Delete these replies of a user, or all: they are gone from memory and file when this returns. Returns the
        names of those that were there. Raises UserStateFileError."""
        return self._thread.submit(self._forget, name, replies).result()

    def held(self) -> tuple[int, int]:
        """Count replies and tokens in the file. Raises UserStateFileError."""
        return self._thread.submit(self._file.held, self._model).result()

    def wait(self) -> None:
        """Wait until all that was submitted so far is done."""
        done: Future[None] = self._thread.submit(lambda: None)
        done.result()

    def close(self) -> None:
        """Write what is to be written."""
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

    # On the thread

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


# Corpora as the program stores them (texts/build.py, which cannot be imported here), as databases of the
# drafter.


FORM = 1
"""Version of the files that texts/build.py writes."""
SEED_NAME = "seed"
"""What the texts that ship are called there."""


def read_corpus(folder: Path, vocabulary: int) -> Source:
    """A corpus, memory-mapped. `vocabulary`: how many tokens the model has. Raises DrafterSettingsError.

    Its files are hashed: a position out of range would be read from anywhere."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        if meta["form"] != FORM:
            raise _unusable(folder, "another version of hierchat wrote it")
        tokens, order = (_mapped(folder, name, meta["files"]) for name in ("tokens.npy", "order.npy"))
    except OSError as error:
        raise _unusable(folder, error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise _unusable(folder, "it is no corpus, or is damaged") from error
    if tokens.size and int(tokens.max()) >= vocabulary:
        raise _unusable(folder, "it was made for another model's tokens")
    slot = SEED if meta.get("name") == SEED_NAME else CORPUS
    return Source(slot, SuffixIndex.from_sorted(tokens, order))


def _mapped(folder: Path, name: str, files: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    with (folder / name).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != files[name]["sha256"]:
            raise _unusable(folder, f"{name} is altered")
    return np.load(folder / name, mmap_mode="r")


def _unusable(folder: Path, reason: str) -> DrafterSettingsError:
    return DrafterSettingsError(
        f"The corpus {folder} cannot be used: {reason}. Make it anew, or leave it out of {PREFIX}STATISTICS."
    )
