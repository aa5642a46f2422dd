"""Chats of files into the store. Each conversation is there whole or not at all, so that a killed import can be run
again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from hierchat.store import Store
from hierchat.store.portable import Outcome
from hierchat.transfer.elements import elements
from hierchat.transfer.errors import BadChat, TransferError
from hierchat.transfer.files import Place, Source, sources
from hierchat.transfer.kinds import own, read, recognised
from hierchat.transfer.values import record, text

KNOWN = (
    "ChatGPT's conversations.json or the zip that holds it, Open WebUI's export of chats, LM Studio's "
    "*.conversation.json, or what hierchat exported as JSON"
)
"""What can be read, as the end of a sentence."""
NAMED = 100
"""Conversations that are named at most, of those that could not be read."""
_TITLE = 60


class Import:
    """Iterate over it to import: it yields after each conversation, file, and piece of a large one. Meanwhile and
    afterwards, it tells how it went.

    Raises TransferError at once where a file is not there; StoreError while it runs. A file that turns out to be broken
    is named among the bad.
    """

    def __init__(self, store: Store, user_id: int, paths: Iterable[Path]) -> None:
        self._store = store
        self._user = user_id
        self._sources = sources(paths)
        self.total = sum(source.size for source in self._sources)
        """Bytes to read."""
        self.done = 0
        """Bytes read, of `total`."""
        self.stop = threading.Event()
        """Set to end it: what came in stays."""
        self.outcomes: Counter[Outcome] = Counter()
        """Conversations: new ones, those that have grown, those that were here."""
        self.kinds: Counter[str] = Counter()
        """Conversations by the program that wrote them."""
        self.presets = 0
        """Presets that are new."""
        self.messages = 0
        self.characters = 0
        self.others = 0
        """Objects that are no conversation of any program that is known."""
        self.bad = 0
        self.reasons: list[str] = []
        """Conversations and files that could not be read, with the reason: the first NAMED."""

    @property
    def taken(self) -> int:
        """Conversations that could be read, those that were here too."""
        return sum(self.outcomes.values())

    def __iter__(self) -> Iterator[None]:
        before = 0
        for path, inside in groupby(self._sources, attrgetter("path")):
            with Place(path) as place:
                for source in inside:
                    for read in self._read(place, source):
                        self.done = before + min(read, source.size)
                        yield
                        if self.stop.is_set():
                            return
                    before += source.size

    def _read(self, place: Place, source: Source) -> Iterator[int]:
        """The bytes that are read, again and again, and in the end."""
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

    def _take(self, source: Source, number: int, value: Any) -> None:
        which = f"number {number}"
        try:
            if isinstance(value, BadChat):
                raise value
            if own.is_preset(value):
                name, settings, is_default = own.read_preset(value)
                self.presets += self._store.take_in_preset(self._user, name, settings, is_default=is_default)
                return
            kind = recognised(value)
            if kind is None:
                self.others += 1
                return
            which = text(record(value).get("title") or record(value).get("name")) or which
            outcome, added = self._store.take_in(self._user, read(value))
        except BadChat as reason:
            self._pass_over(f"{source.name}, {which[:_TITLE]}: {reason}.")
            return
        self.kinds[kind] += 1
        self.outcomes[outcome] += 1
        self.messages += len(added)
        self.characters += sum(len(message.text) for message in added)

    def _pass_over(self, reason: str) -> None:
        self.bad += 1
        if len(self.reasons) < NAMED:
            self.reasons.append("".join(sign if sign.isprintable() else " " for sign in reason))
