"""Have the model name new chats, in spare time.

A title comes from the chat's first question alone, and a small model writes none: the first words are the title then.
Nothing of its prompt is stored or learned."""

import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hierchat.chat.spare_time import SpareTimeThread
from hierchat.chat.statistics import ReplyStatistics
from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import GenerationRequest
from hierchat.reasoning import split_reasoning
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import Prompt, PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import Store
from hierchat.store.chats import Untitled
from hierchat.store.repository import TITLE_CHARACTERS

IDLE_SECONDS = 4.0
"""So long nobody must have wanted the model."""
NEW_SECONDS = 86_400.0
"""How old a chat may be."""
ASK = (
    "Write a short title for a conversation that begins with the message below: two to six words that name its "
    "subject, in the language of the message. Answer with the title alone.\n\n"
)
LEAST_PARAMETERS = 1e9
"""Parameters of a model that writes titles; smaller ones name what was never asked."""
_SETTINGS = GenerationSettings(max_new_tokens=40)
_PART = 1_000
"""Characters of the question that are read for a title."""
_POLL_SECONDS = 0.25

_TAG = re.compile(r"<\|[^<>]*\|>|</?(?:title|answer|b|i|em|strong|p|h\d)>", re.IGNORECASE)
_BEFORE = re.compile(
    r"^(?:#+\s*|[-*+>]\s+|\d+[.)]\s+|(?:short |suggested )?title\s*[:\-]\s*)+", re.IGNORECASE
)
_MARKS = re.compile(r"\*\*+|^\*|\*$|`+|~~+")
_QUOTES = "\"'\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\u2039\u203a"
_CHATTER = re.compile(
    r"sure|certainly|of course|okay|ok\b|here\b|i\s|i['\u2019]m|sorry|as an|the (?:short )?title\b|title$|untitled",
    re.IGNORECASE,
)


@dataclass(eq=False)
class TitleWriter:
    """Writes titles of new chats, one after the other. Its thread lives as long as there is one to name."""

    _store: Store
    _slot: ModelSlot

    def __post_init__(self) -> None:
        self._thread = SpareTimeThread("titles", _POLL_SECONDS, self._go_on)
        self.wake, self.wait = self._thread.wake, self._thread.wait

    def close(self) -> None:
        """Stop the thread, and the title that it is writing."""
        self._thread.closed.set()
        with self._slot.scheduler.turn(0, first=True):  # whoever joins the queue stops it
            pass
        self.wait()

    def _go_on(self) -> bool:
        served = self._slot.model
        if served is None or not _may_name(served):
            return False
        if self._slot.scheduler.idle_seconds < IDLE_SECONDS:
            return True
        chats = self._store.chats.untitled(served.model_key, time.time() - NEW_SECONDS)
        if not chats:
            return False
        with self._slot.scheduler.spare() as wanted:
            if wanted is not None and self._slot.model is served:
                chat = chats[0]
                path = self._store.messages.path(chat.user_id, chat.id)
                prompt = _prompt(served, next((one.text for one in path if one.role == "user"), ""))
                title = _written(served, prompt, wanted, chat) if prompt else None
                if not wanted.is_set():
                    self._store.chats.title_by_model(chat, served.model_key, title)
        return True


def _may_name(served: ServedModel) -> bool:
    """Return whether a model is large enough to write titles, and has slots for a title and a chat at once."""
    large = served.parameters is None or served.parameters >= LEAST_PARAMETERS
    return large and (not served.is_local or served.local.places > 1)


def _prompt(served: ServedModel, question: str) -> Prompt | None:
    # A thought would be longer than the title may be.
    off: Reasoning = "off" if "off" in served.prompts.thinking.choices else ""
    asked = [PromptMessage("user", ASK + question[:_PART])]
    with suppress(PromptError):
        return served.prompts.build(asked, _SETTINGS.max_new_tokens, served.end_ids, off)
    return None


def _written(served: ServedModel, prompt: Prompt, wanted: threading.Event, chat: Untitled) -> str | None:
    decode = partial(served.prompts.thinking.text, opened=prompt.thinking)
    statistics = ReplyStatistics(decode, _SETTINGS)
    # A title uses the slots of a user who does not exist: the chat's own slots stay filled for its next message.
    request = GenerationRequest(
        prompt.ids, _SETTINGS, None, wanted, padded=False, user=~chat.user_id, chat=chat.id, spare=True
    )
    for step in served.engine.generate(request):
        statistics.add(step)
    return clean_title(statistics.text, cut=statistics.finish == "length")


def clean_title(text: str, *, cut: bool = False) -> str | None:
    """Extract the title from a model's text: one plain line. None if there is none. `cut`: its end is missing."""
    text = _TAG.sub("", split_reasoning(text).answer)
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines = lines[1:]
    if not lines or (cut and len(lines) == 1):
        return None
    line = _BEFORE.sub("", _MARKS.sub("", lines[0]).strip(_QUOTES + " "))
    line = "".join(sign if sign.isprintable() else " " for sign in line)
    line = " ".join(line.split()).strip(_QUOTES + " ").removesuffix(".").rstrip(":;, ")
    line = line.strip(_QUOTES + " ")
    plain = 0 < len(line) <= TITLE_CHARACTERS and any(map(str.isalpha, line))
    return line if plain and not _CHATTER.match(line) and line.casefold() not in ASK.casefold() else None
