"""Keep what stands in the composer beside the text: files to be sent, and messages that wait for a reply to end
(chat/in_progress.py). The files live in this process alone, until they are sent."""

from __future__ import annotations

import html
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierchat.chat.in_progress import ReplyInProgress
from hierchat.language import _, later
from hierchat.page.buttons import button
from hierchat.store import Attachment

PASTED = later("Pasted text")
MOST_CHARACTERS = 50_000_000
"""Of files that are kept for pages that may be loaded again; beyond, the oldest go."""
_CROSS = "\N{MULTIPLICATION SIGN}"


@dataclass(slots=True)
class Attached:
    """A file that will go with the next message."""

    key: str
    """EventFields by the page, which asks for it by that name when it was loaded again."""
    name: str
    file: Attachment | None = None
    """None while it is read."""
    pasted: bool = False
    tokens: int | None = None
    more: bool = False
    """Whether it has more than `tokens`."""
    counted_by: str = ""
    """The model whose tokens these are."""
    step: int = 0
    """Number of the click that chose it: files arrive in any order and stand in that of their steps."""


class KeptFiles:
    """Files by user and key, so that a page that is loaded again finds its own."""

    def __init__(self, most: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._files: OrderedDict[tuple[int, str], Attached] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, user_id: int, file: Attached) -> None:
        """Keep a file from now on."""
        with self._lock:
            self._files[user_id, file.key] = file
            while len(self._files) > 1 and self._size() > self._most:
                self._files.popitem(last=False)

    def find(self, user_id: int, key: str) -> Attached | None:
        """Find a file by its key; None where it is gone: sent, taken away, or this process does not know it."""
        with self._lock:
            return self._files.get((user_id, key))

    def drop(self, user_id: int, files: Sequence[Attached]) -> None:
        """Forget files that were sent, or taken away."""
        with self._lock:
            for file in files:
                self._files.pop((user_id, file.key), None)

    def forget(self, user_id: int) -> None:
        """Forget all files of a user."""
        with self._lock:
            for key in [key for key in self._files if key[0] == user_id]:
                del self._files[key]

    def back(self, user_id: int, attached: list[Attached], files: Sequence[Attachment]) -> None:
        """These were on their way, and are to be sent with the next message after all: before what is `attached`."""
        again = [Attached(secrets.token_hex(16), file.name, file, file.name == PASTED) for file in files]
        for one in again:
            self.keep(user_id, one)
        attached[:0] = again

    def _size(self) -> int:
        return sum(len(one.file.text) for one in self._files.values() if one.file)


def tray(
    chat: int,
    attached: Mapping[int, Sequence[Attached]],
    queued: Sequence[ReplyInProgress],
    known: bool,
) -> str:
    """Draw what stands above the box for `chat` (0: a new one), as HTML; `queued`: what waits in any of the user's.
    The page
    keeps the files of all chats for when it is loaded again; `known`: it has asked for what it had then."""
    files = "".join(map(_chip, attached.get(chat, ())))
    waiting = "".join(_waiting(one) for one in queued if one.conversation_id == chat)
    lists = (
        f'<ol class="hc-next" aria-label="{_("Messages that will be sent next")}">{waiting}</ol>'
        if waiting
        else ""
    )
    lists += (
        f'<ul class="hc-files" aria-label="{_("Attached files")}" aria-live="polite">{files}</ul>'
        if files
        else ""
    )
    state = html.escape(json.dumps(_state(attached)))
    return f'<div class="hc-tray" data-state="{state}" data-known="{"yes" if known else ""}">{lists}</div>'


def _state(attached: Mapping[int, Sequence[Attached]]) -> dict[str, object]:
    files = [(chat, file) for chat, many in attached.items() for file in many]
    return {
        "files": [{"chat": chat, "key": file.key, "name": file.name} for chat, file in files if file.file]
    }


def _chip(file: Attached) -> str:
    name = html.escape(shown_name(file.name))
    if file.file is None:
        return (
            f'<li class="hc-chip" data-file="{file.key}" data-reading><span class="hc-chip-name">{name}</span>'
            f"{_fact(_('being read…'))}</li>"
        )
    facts = (
        size(file.file.size)
        if file.tokens is None
        else (
            _("{size} · more than {tokens:,} tokens") if file.more else _("{size} · {tokens:,} tokens")
        ).format(size=size(file.file.size), tokens=file.tokens)
    )
    inline = button("hc_inline", _("Insert as text"), text=file.key) if file.pasted else ""
    away = button(
        "hc_detach",
        _CROSS,
        text=file.key,
        aria_label=_("Remove {name}").format(name=file.name),
        title=_("Remove"),
    )
    return (
        f'<li class="hc-chip" data-file="{file.key}"><span class="hc-chip-name" title="{name}">{name}</span>'
        f"{_fact(facts)}{inline}{away}</li>"
    )


def _waiting(one: ReplyInProgress) -> str:
    title = html.escape(one.title)
    edit = button(
        "hc_next_edit",
        _("Edit"),
        text=str(one.number),
        aria_label=_("Edit “{title}”, which will be sent next").format(title=one.title),
    )
    away = button("hc_next_cancel", _CROSS, text=str(one.number), title=_("Do not send"),
                  aria_label=_("Do not send “{title}”").format(title=one.title))  # fmt: skip
    said = f'{_fact(_("Will be sent next:"))}<span class="hc-chip-name" dir="auto">{title}</span>'
    return f'<li class="hc-chip">{said}{edit}{away}</li>'


def _fact(text: str) -> str:
    return f'<span class="hc-chip-fact">{text}</span>'


def shown_name(name: str) -> str:
    """The name of a file for the eye: of pasted text, which has none of its own, in the reader's language."""
    return _(PASTED) if name == PASTED else name


def size(amount: int) -> str:
    """Bytes for the eye."""
    if amount < 1_000:
        return _("{bytes:.0f} bytes").format(bytes=amount)
    return f"{amount / 1e3:,.0f} KB" if amount < 1_000_000 else f"{amount / 1e6:,.1f} MB"
