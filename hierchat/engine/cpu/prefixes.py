"""Keep on disk what a CpuRunner has read: pages of keys and values, and running states.
A file's name hashes the model, the kernels and all tokens up to its end; it begins with a hash of name and content.
A damaged or foreign file is deleted, and its text is read anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.memory import CHUNK, SLOTS, STEP
from hierchat.engine.cpu.sequence import CpuSequence, Snapshot
from hierchat.engine.runner import CachedSequence

if TYPE_CHECKING:
    from hierchat.engine.cpu.runner import CpuRunner

VERSION = "1"
"""Version of the form of the files."""
DIGEST = 16
"""Bytes of a hash."""
LEAST = 16
"""Tokens; fewer are read again."""
LEAST_FREE = 0.1
"""Fraction of the disk that stays free."""
Text = tuple[CachedSequence, int | None, int | None]
"""A sequence, its user and its chat."""


class Copied(NamedTuple):
    """Content of a file that is to be written."""

    user: int
    chat: int
    name: str
    data: bytes


class Prefixes:
    """Reads and writes the files of one runner in `folder`, by user and chat, at most `most` bytes in all.
    `may_keep(user, chat)` is asked before and after each file is written. The least recently used go first."""

    def __init__(
        self, runner: CpuRunner, folder: Path, may_keep: Callable[[int, int], bool], most: int
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._may_keep = may_keep
        self._most = most
        self._first = blake2b(f"{VERSION} {runner.identity}".encode(), digest_size=DIGEST).digest()

    def restore(self, sequence: CachedSequence, prompt: Sequence[int], user: int | None) -> None:
        """Put into a sequence, which holds the beginning of a prompt, as much more of it as there is of this user's."""
        if user is None or not isinstance(sequence, CpuSequence) or sequence.runner is not self._runner:
            return
        if len(prompt) - 1 < len(sequence.tokens) + LEAST:  # too little is left to look for
            return
        with suppress(OSError):
            files = self._files(user)
            if files:
                self._restore(sequence, prompt[:-1], files)

    def next_copy(self, texts: Iterable[Text], done: set[tuple[int, str]]) -> Copied | None:
        """Copy the next part of these texts that is in no file or `done`, or None. No forward may be running."""
        for sequence, user, chat in texts:
            if user is None or chat is None or len(sequence.tokens) < CHUNK:
                continue
            if not isinstance(sequence, CpuSequence) or not self._may_keep(user, chat):
                continue
            there = self._files(user).keys() | {name for owner, name in done if owner == user}
            hashes = self._hashes(sequence.tokens)
            for number, digest in enumerate(hashes[1:]):
                if digest.hex() not in there:
                    return Copied(user, chat, digest.hex(), self._page(sequence, number, CHUNK))
            for length, snapshot in self._ends(sequence):
                name = self._end_name(hashes, sequence.tokens, length)
                if name not in there:
                    return Copied(user, chat, name, self._end(sequence, length, snapshot))
        return None

    def write(self, copied: Copied) -> None:
        """Write a file, unless that would leave too little of the disk free. Raises OSError."""
        user, chat, name, data = copied
        folder = self._folder / str(user) / str(chat)
        size = len(data) + DIGEST
        usage = shutil.disk_usage(self._folder.parent)
        if size > self._most or usage.free - size < LEAST_FREE * usage.total:
            return
        self._make_room(size)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part, allowed = folder / f"{name}.{os.getpid()}.part", False
        try:
            with open(part, "wb") as file:
                file.write(_digest(name, data))
                file.write(data)
            part.replace(folder / name)
            allowed = self._may_keep(user, chat)
        finally:
            part.unlink(missing_ok=True)
            if not allowed:  # deleted meanwhile, or that is not known
                (folder / name).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        found = []
        for path in self._folder.glob("*/*/*"):
            with suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, path))
        total = size + sum(bytes for _, bytes, _ in found)
        for _, bytes, path in sorted(found):
            if total <= self._most:
                return
            path.unlink(missing_ok=True)
            total -= bytes

    def _files(self, user: int) -> dict[str, Path]:
        return {path.name: path for path in (self._folder / str(user)).glob("*/*")}

    def _hashes(self, tokens: Sequence[int]) -> list[bytes]:
        found = [self._first]
        for end in range(CHUNK, len(tokens) + 1, CHUNK):
            found.append(_hash(found[-1], tokens[end - CHUNK : end]))
        return found

    def _end_name(self, hashes: Sequence[bytes], tokens: Sequence[int], length: int) -> str:
        pages = length // CHUNK
        return f"{_hash(hashes[pages], tokens[pages * CHUNK : length]).hex()}-{length}"

    def _ends(self, sequence: CpuSequence) -> Iterator[tuple[int, Snapshot | None]]:
        """Yield how many tokens to keep after the last whole page; with running states, also before the last reply."""
        if self._runner.states:
            for length in (len(sequence.tokens), sequence.last_prompt):
                if (found := sequence.snapshot_before(length)) and found.length >= LEAST:
                    yield found.length, found
        elif len(sequence.tokens) % CHUNK >= LEAST:
            yield len(sequence.tokens), None

    def _page(self, sequence: CpuSequence, number: int, count: int) -> bytes:
        """Copy the first `count` slots of a page of a text; the others are zero."""
        pieces = []
        for array, axis in self._arrays(sequence.pages[number]):
            piece = array.copy()
            np.moveaxis(piece, axis, 0)[count:] = 0  # another text may have been there
            pieces.append(piece.tobytes())
        return b"".join(pieces)

    def _arrays(self, page: int) -> Iterator[tuple[NDArray, int]]:
        for layers in self._runner.slots:
            yield layers.keys[page], -1
            yield layers.key_scales[page], -1
            yield layers.values[page], -2
            yield layers.value_scales[page], -1

    def _end(self, sequence: CpuSequence, length: int, snapshot: Snapshot | None) -> bytes:
        number, count = divmod(length, CHUNK)
        page = self._page(sequence, number, count) if count else b""
        return b"".join([page, snapshot.state.tobytes(), snapshot.records.tobytes()]) if snapshot else page

    def _restore(self, sequence: CpuSequence, prompt: Sequence[int], files: dict[str, Path]) -> None:
        hashes, held = self._hashes(prompt), len(sequence.tokens)
        pages = 0
        while pages + 1 < len(hashes) and hashes[pages + 1].hex() in files:
            pages += 1
        named = {int(name.partition("-")[2]) for name in files if name.partition("-")[2].isdigit()}
        lengths = [one for one in sorted(named, reverse=True) if one <= len(prompt) and one // CHUNK <= pages]
        if not self._runner.states:
            parts = [(end * CHUNK, files[hashes[end].hex()]) for end in range(held // CHUNK + 1, pages + 1)]
            ends = (
                (one, files.get(self._end_name(hashes, prompt, one)))
                for one in lengths
                if one > pages * CHUNK
            )
            parts += [(length, path) for length, path in ends if path][:1]
            if not parts or parts[-1][0] < held + LEAST:
                return
            for end, file in parts:
                data = self._read(file)
                if data is None or not self._load_page(sequence, (end - 1) // CHUNK, data):
                    return
                sequence.go_on(prompt[len(sequence.tokens) : end])
            return
        for length in lengths:
            if held + LEAST <= length:
                path = files.get(self._end_name(hashes, prompt, length))
                if path and self._load_all(sequence, prompt[:length], hashes, files, path):
                    return

    def _load_all(
        self,
        sequence: CpuSequence,
        tokens: Sequence[int],
        hashes: Sequence[bytes],
        files: dict[str, Path],
        path: Path,
    ) -> bool:
        """Restore a text with its running states; return whether that could be done."""
        states, shape = self._runner.states, self._runner.state_shape
        assert states
        assert shape
        held, (last, count) = len(sequence.tokens), divmod(len(tokens), CHUNK)
        data = self._read(path)
        if data is None:
            return False
        page = sum(array.nbytes for array, _ in self._arrays(0)) if count else 0
        state = states.running[0, :, :, 0]
        records = np.frombuffer(data[page + state.nbytes :], np.float32)
        records = records.reshape(shape.layers, -1, states.records.shape[-1])
        # The records begin at the chunk before which the state is stored.
        folded, rest = divmod(len(tokens) - records.shape[1], STEP)
        if rest or folded < 0 or records.shape[1] > SLOTS:
            return False
        for number in range(held // CHUNK, last):
            content = self._read(files[hashes[number + 1].hex()])
            if content is None or not self._load_page(sequence, number, content):
                sequence.rollback(held)
                return False
        if count:
            self._load_page(sequence, last, data[:page])
        kept = np.frombuffer(data[page : page + state.nbytes], np.float32).reshape(state.shape)
        sequence.go_on(tokens[held:], Snapshot(len(tokens), folded, kept, records))
        return True

    def _load_page(self, sequence: CpuSequence, number: int, data: bytes) -> bool:
        """Overwrite a page of a sequence; return whether the content has its size."""
        if len(data) != sum(array.nbytes for array, _ in self._arrays(0)):
            return False
        sequence.make_room(number * CHUNK, (number + 1) * CHUNK)
        begin = 0
        for array, _ in self._arrays(sequence.pages[number]):
            end = begin + array.nbytes
            array[:] = np.frombuffer(data[begin:end], array.dtype).reshape(array.shape)
            begin = end
        return True

    def _read(self, path: Path) -> bytes | None:
        """Return the content of a file, and note its use; None if it is damaged or gone, and delete it then."""
        with suppress(OSError):
            whole = path.read_bytes()
            if whole[:DIGEST] == _digest(path.name, memoryview(whole)[DIGEST:]):
                os.utime(path)
                return whole[DIGEST:]
            path.unlink()
        return None


def _hash(before: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(before + np.array(tokens, "<i8").tobytes(), digest_size=DIGEST).digest()


def _digest(name: str, data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=DIGEST, key=name.encode()[:64]).digest()
