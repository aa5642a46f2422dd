"""Write titles of new chats by the model, while nobody needs it.

The question for the title stands behind the chat itself. So its prompt is in the slots already, and stays there for the
chat's next message. Nothing of it is stored but the title, and nothing is learned from it."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hierchat import logs
from hierchat.chat.spare_time import SpareTimeThread
from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import GenerationRequest
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import Prompt, PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import Store
from hierchat.store.connection import TITLE_CHARACTERS
from hierchat.store.records import Message

IDLE_SECONDS = 4.0
"""So long nobody must have wanted the model."""
NEW_SECONDS = 86_400.0
"""How old a chat may be."""
ASK = (
    "Write a short title for this conversation: two to six words that name its subject, in the language of the "
    "conversation. Answer with the title alone."
)
_SETTINGS = GenerationSettings(max_new_tokens=40)
_PART = 1_000
"""Characters of the question and of the reply, where the chat does not fit the context window."""
_POLL_SECONDS = 0.25

_REASONING = re.compile(r"<(think|thinking|reasoning|reflection)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_REASONS = re.compile(r"<(?:think|thinking|reasoning|reflection)>", re.IGNORECASE)
_TAG = re.compile(r"<\|[^<>]*\|>|</?(?:title|answer|b|i|em|strong|p|h\d)>", re.IGNORECASE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BEFORE = re.compile(
    r"^(?:#+\s*|[-*+>]\s+|\d+[.)]\s+|(?:short |suggested )?title\s*[:\-]\s*)+", re.IGNORECASE
)
_MARKS = re.compile(r"\*\*+|^\*|\*$|`+|~~+")
_QUOTES = "\"'\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\u2039\u203a"
_CHATTER = re.compile(
    r"sure|certainly|of course|okay|ok\b|here\b|i\s|i['\u2019]m|sorry|as an|the (?:short )?title\b|title$|untitled",
    re.IGNORECASE,
)

_log = logging.getLogger("hierchat.titles")


@dataclass(eq=False)
class TitleWriter:
    """Writes titles of new chats, one after the other. Its thread lives as long as there is one to name."""

    _store: Store
    _slot: ModelSlot
    _said: Callable[[ServedModel, int, Sequence[Message]], list[PromptMessage]]
    """Turns a user's messages into those of the prompt."""

    def __post_init__(self) -> None:
        self._came: Counter[int] = Counter()
        self._thread = SpareTimeThread("titles", _POLL_SECONDS, self._go_on, self._failed)
        self.wake, self.wait = self._thread.wake, self._thread.wait

    def came(self, user_id: int) -> int:
        """Return how many titles were written for this user since the start."""
        return self._came[user_id]

    def close(self) -> None:
        """Stop the thread, and the title that it is writing."""
        self._thread.closed.set()
        with self._slot.scheduler.turn(0, first=True):  # whoever joins the queue stops it
            pass
        self.wait()

    @staticmethod
    def _failed(error: Exception) -> None:
        # The first words are a title, too.
        _log.info("No title could be written. %s", logs.error_message(error))

    def _go_on(self) -> bool:
        """Write the next chat's title if the machine has been idle long enough; return whether there may be more."""
        served = self._slot.model
        if served is None:
            return False
        if self._slot.scheduler.idle_seconds < IDLE_SECONDS:
            return True
        chats = self._store.chats.untitled(served.model_key, time.time() - NEW_SECONDS)
        if not chats:
            return False
        with self._slot.scheduler.spare() as wanted:
            if wanted is not None and self._slot.model is served:
                chat, messages = chats[0], self._store.messages
                path = [one for one in messages.path(chat.user_id, chat.id) if one.role != "system"]
                prompt = self._prompt(served, chat.user_id, path)
                title = _written(served, prompt, wanted, chat.user_id) if prompt else None
                if not wanted.is_set() and self._store.chats.title_by_model(chat, served.model_key, title):
                    self._came[chat.user_id] += 1
        return True

    def _prompt(self, served: ServedModel, user_id: int, path: Sequence[Message]) -> Prompt | None:
        """Return the prompt that asks for a title: the chat as it is in the slots, and the question behind
        it; if that is too long, the beginnings of its first question and reply. None if these are too long."""
        beginnings = [PromptMessage(message.role, message.text[:_PART]) for message in path[:2]]
        for said in (self._said(served, user_id, path), beginnings):
            with suppress(PromptError):
                asked = [*said, PromptMessage("user", ASK)]
                # A thought would be longer than the title may be.
                off: Reasoning = "off" if "off" in served.prompts.thinking.choices else ""
                prompt = served.prompts.build(asked, _SETTINGS.max_new_tokens, served.end_ids, off)
                if not prompt.dropped_turns:
                    return prompt
        return None


def _written(served: ServedModel, prompt: Prompt, wanted: threading.Event, user: int) -> str | None:
    """Have the model answer the prompt for a title, and return the title; None if the answer holds none."""
    tokens: list[int] = []
    text, finish, told = "", None, False
    for step in served.engine.generate(
        GenerationRequest(prompt.ids, _SETTINGS, None, wanted, padded=False, user=user)
    ):
        tokens += step.tokens
        finish = step.finish
        if step.text is not None:
            text, told = text + step.text, True
        elif not told:
            text = served.prompts.thinking.text(tokens, opened=prompt.thinking)
        if "\n" in text.strip() and not text.lstrip().startswith("<") and not text.rstrip().endswith(":"):
            break
    return clean_title(text, cut=finish == "length")


def clean_title(text: str, *, cut: bool = False) -> str | None:
    """Extract the title from a model's text: one plain line. None if there is none. `cut`: its end is missing."""
    text = _REASONING.sub("", text)
    text = "" if _REASONS.search(text) else _TAG.sub("", text)  # reasoning that has not ended
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines = lines[1:]
    if not lines or (cut and len(lines) == 1):
        return None
    line = _BEFORE.sub("", _LINK.sub(r"\1", _MARKS.sub("", lines[0]).strip(_QUOTES + " ")))
    line = "".join(sign if sign.isprintable() else " " for sign in line)
    line = " ".join(line.split()).strip(_QUOTES + " ").removesuffix(".").rstrip(":;, ")
    line = line.strip(_QUOTES + " ")
    plain = 0 < len(line) <= TITLE_CHARACTERS and any(map(str.isalpha, line))
    return line if plain and not _CHATTER.match(line) and line.casefold() not in ASK.casefold() else None
