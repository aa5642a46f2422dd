"""Import chats of files into the store, each conversation whole or not at all."""

import codecs
import json
import re
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

from hierchat.store import Store
from hierchat.store.portable import Outcome
from hierchat.store.users import LONGEST_NOTES
from hierchat.texts.importers import chatgpt, lm_studio, open_webui, own
from hierchat.texts.importers.tree import BadChat, TransferError, record, text

# The objects of a JSON file, one by one: those of its array, or those that stand behind each other. Whole
# objects are cut out by their brackets and parsed alone. So what is wrong inside one (half a surrogate
# pair, NaN, a missing comma) costs that one, and no more than one is in memory.

PIECE = 1 << 18
"""Bytes that are read at once."""
LARGEST = 1 << 28
"""Bytes of one object at most. Open WebUI keeps images in its chats."""
MOST_COMMAS = 1 << 22
"""In one object, texts included: an array of a hundred million numbers would take gigabytes of memory."""
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+(?:"|()\\?\Z))*+', re.DOTALL)
"""Past whole strings too. Of one that has no end yet the group marks how far it goes: were it no match, Python 3.11.2
(Debian 12) would not go back to where it begins."""


def elements(stream: BinaryIO) -> Iterator[Any]:
    """Yield each value of a JSON stream; BadChat for a broken one, None after each piece that completes none."""
    for raw in _cut(stream):
        if not isinstance(raw, bytes):
            yield raw
        elif raw.count(b",") > MOST_COMMAS:
            yield BadChat(f"it has more than {MOST_COMMAS:,} parts")
        else:
            try:
                value = json.loads(raw.decode("utf-8", "replace"))
            except RecursionError:
                value = BadChat("it is nested too deep")
            except ValueError as error:  # not only JSONDecodeError: a number may have too many digits
                value = BadChat(f"it is no JSON ({error})")
            yield value


def _cut(stream: BinaryIO) -> Iterator[bytes | BadChat | None]:
    data = stream.read(PIECE).removeprefix(codecs.BOM_UTF8)
    outside = 1 if data.lstrip()[:1] == b"[" else 0
    depth = at = start = 0
    large = in_string = False
    while True:
        while at < len(data):
            if in_string:
                at = _INSIDE_STRING.match(data, at).end()  # type: ignore[union-attr]  # matches everywhere
                if data[at : at + 1] != b'"':
                    break  # the rest of it, and maybe of an escape, comes with the next piece
                at += 1
                in_string = False
                continue
            found = _TO_BRACKET.match(data, at)
            assert found is not None  # it matches everywhere
            in_string = found[1] is not None
            at = found.start(1) if in_string else found.end()
            if at == len(data) or in_string:
                break
            sign = data[at : at + 1]
            at += 1
            if sign in b"{[":
                if depth == outside:
                    start = at - 1
                depth += 1
            elif depth > outside:
                depth -= 1
                if depth == outside:
                    yield BadChat(f"it has more than {LARGEST >> 20} MB") if large else data[start:at]
                    large = False
            else:
                depth = outside = 0  # the end of the array
        inside = depth > outside
        if inside and at - start > LARGEST:
            large = True
        keep = at if large or not inside else start
        more = stream.read(PIECE if len(data) - keep < PIECE else len(data) - keep)
        if not more:
            break
        data, at, start = data[keep:] + more, at - keep, start - keep
        yield None
    if depth:
        yield BadChat("the file ends here, in the middle")


# Files of chats, as they are given: JSON, zips that hold JSON, folders of both.

_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MOST_DIRECTORY = 1 << 24
"""Bytes of a zip's list of files, looked at before it is read: that of some 100,000 files."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    path: Path
    member: str | None
    size: int
    """Bytes, unpacked."""

    @property
    def name(self) -> str:
        return self.path.name if self.member is None else f"{self.path.name}, {self.member}"


class ExportContainer(ExitStack):
    """File that sources lie in. A zip is opened once for all that is read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._packed: zipfile.ZipFile | None = None

    @contextmanager
    def opened(self, source: ExportedFile) -> Iterator[BinaryIO]:
        """Open a source for reading. Raises TransferError if it cannot be read, from inside the block too."""
        try:
            if source.member is None:
                with self._path.open("rb") as stream:
                    yield stream
            else:
                self._packed = self._packed or self.enter_context(zipfile.ZipFile(self._path))
                try:
                    member = self._packed.open(source.member)
                except RuntimeError as error:  # it has a password
                    raise unreadable(self._path, error) from error
                with member as stream:
                    yield cast(BinaryIO, stream)
        except OSError as error:
            raise unreadable(self._path, error.strerror or error) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise unreadable(self._path, f"no whole zip: {error}") from error


def unreadable(path: Path, what: object) -> TransferError:
    return TransferError(f"{path} cannot be read ({what}). Get it again, or name another file.")


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise TransferError(f"There is no {path}. Name the file or folder that you were given.")
    if not path.is_dir():
        return [path]
    found = sorted(file for kind in ("*.json", "*.zip") for file in path.rglob(kind) if file.is_file())
    if not found:
        raise TransferError(f"There is no JSON file and no zip in {path}.")
    return found


def _of(path: Path) -> list[ExportedFile]:
    try:
        if not zipfile.is_zipfile(path):
            return [ExportedFile(path, None, path.stat().st_size)]
        with path.open("rb") as stream:  # before the list of its files is read, which takes memory
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
        if end and end[zipfile._ECD_SIZE] > _MOST_DIRECTORY:  # type: ignore[attr-defined]
            raise TransferError(
                f"{path} holds too many files. Unpack it, and import the files that hold chats."
            )
        with zipfile.ZipFile(path) as packed:
            found = [
                ExportedFile(path, one.filename, one.file_size)
                for one in packed.infolist()
                if one.filename.endswith(".json") and one.compress_type in _READABLE
            ]
    except OSError as error:
        raise unreadable(path, error.strerror or error) from error
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise unreadable(path, f"no whole zip: {error}") from error
    if not found:
        raise TransferError(f"There is no JSON file in {path}.")
    return found


KINDS = (own, chatgpt, open_webui, lm_studio)
"""The programs whose files can be read. A file's kind is told by what is in it, not by its name."""
KNOWN = (
    "ChatGPT's conversations.json or the zip that holds it, Open WebUI's export of chats, LM Studio's "
    "*.conversation.json, or what hierchat exported as JSON"
)
"""What can be read, as the end of a sentence."""
NAMED = 100
"""Conversations that are named at most, of those that could not be read."""
_TITLE = 60


class Import:
    """Imports chats as it is iterated: yields after each conversation, file, and large piece, and counts what happened.
    Raises TransferError for missing files, StoreError later; broken files are listed."""

    def __init__(self, store: Store, user_id: int, paths: Iterable[Path]) -> None:
        self._store = store
        self._user = user_id
        self._sources = [source for path in paths for file in _files(path) for source in _of(file)]
        self.total = sum(source.size for source in self._sources)
        self.done = 0
        """Bytes read, of `total`."""
        self.stop = threading.Event()
        """Set to end it: what came in stays."""
        self.outcomes: Counter[Outcome] = Counter()
        """Conversations: new ones, those that have grown, those that were here."""
        self.presets = 0
        self.projects = 0
        """Projects that are new, of those that stand there by themselves."""
        self.messages = 0
        self.characters = 0
        self.bad = 0
        self.reasons: list[str] = []
        """Conversations and files that could not be read, with the reason: the first NAMED."""

    def __iter__(self) -> Iterator[None]:
        before = 0
        for path, inside in groupby(self._sources, attrgetter("path")):
            with ExportContainer(path) as place:
                for source in inside:
                    for read in self._read(place, source):
                        self.done = before + min(read, source.size)
                        yield
                        if self.stop.is_set():
                            return
                    before += source.size

    def _read(self, place: ExportContainer, source: ExportedFile) -> Iterator[int]:
        number = 0
        try:
            with place.opened(source) as stream:
                for value in elements(stream):
                    if value is not None:
                        number += 1
                        self._take(source, number, value)
                    yield stream.tell()
        except TransferError as error:
            self._pass_over(str(error))
        yield source.size

    def _take(self, source: ExportedFile, number: int, value: Any) -> None:
        which = f"number {number}"
        try:
            if isinstance(value, BadChat):
                raise value
            if own.recognises(value) and "preset" in value:
                name, settings, is_default = own.read_preset(value)
                self.presets += self._store.presets.add_missing(
                    self._user, name, settings, is_default=is_default
                )
                return
            if own.recognises(value) and "messages" not in value and "project" in value:
                self.projects += self._store.projects.add_missing(self._user, *own.read_project(value))
                return
            if own.recognises(value) and "notes" in value:
                if not self._store.users.notes(self._user):
                    self._store.users.set_notes(self._user, text(value["notes"])[:LONGEST_NOTES])
                return
            reader = next((kind for kind in KINDS if kind.recognises(value)), None)
            if reader is None:
                return
            which = text(record(value).get("title") or record(value).get("name")) or which
            outcome, added = self._store.transfer.import_chat(self._user, reader.read(value))
        except BadChat as reason:
            self._pass_over(f"{source.name}, {which[:_TITLE]}: {reason}.")
            return
        self.outcomes[outcome] += 1
        self.messages += len(added)
        self.characters += sum(len(message.text) for message in added)

    def _pass_over(self, reason: str) -> None:
        self.bad += 1
        if len(self.reasons) < NAMED:
            self.reasons.append("".join(sign if sign.isprintable() else " " for sign in reason))
