"""Have the model name new chats, in spare time, and summarise the oldest turns of one that outgrows the context.

A title comes from the chat's first question alone, and a small model writes none: the first words are the title then.
Nothing of its prompt is stored or learned. A summary replaces the oldest turns in the prompt. The turns themselves stay
in the chat, and so do their files in the prompt."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from hierchat import logs
from hierchat.chat.completions import Completions, ReplyOptions
from hierchat.chat.frames import Frame
from hierchat.chat.reply_stream import ReplyStream
from hierchat.chat.spare_time import SpareTimeThread
from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import GenerationRequest
from hierchat.language import _, plural
from hierchat.reasoning import split_reasoning
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import Prompt, PromptMessage, turns_of
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import Store
from hierchat.store.chats import Untitled
from hierchat.store.records import Attachment, Message
from hierchat.store.stored_text import TITLE_CHARACTERS
from hierchat.texts.attachments import with_files

ToPrompt = Callable[[ServedModel, int, Sequence[Message]], list[PromptMessage]]
"""Turns a user's messages into those of the prompt."""
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
                if not wanted.is_set() and self._store.chats.title_by_model(chat, served.model_key, title):
                    self._came[chat.user_id] += 1
        return True


def _may_name(served: ServedModel) -> bool:
    """Return whether a model is large enough to write titles, and has slots for one beside those of a chat."""
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
    tokens: list[int] = []
    text, finish, told = "", None, False
    request = GenerationRequest(
        prompt.ids, _SETTINGS, None, wanted, padded=False, user=~chat.user_id, chat=chat.id, spare=True
    )  # in slots of its own: the chat's next message needs those of the chat
    for step in served.engine.generate(request):
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


# Summaries.
SUMMARISE = (
    "Summarise the conversation so far, so that it can go on without its text: what was asked, found and decided, and "
    "the names, numbers and code that are still needed. Answer in its language, with the summary alone"
)
_LENGTH = ", in {least} to {words} words."
_SUMMARY = "Summary of the conversation so far:\n\n{text}"
_MOST_TOKENS = 2048
"""Bounds a summary, with what a model that cannot be kept from it thinks before."""
_CHARACTERS = 80
"""Characters of a chat for each word of its summary, about."""
_FEW_WORDS, _MOST_WORDS = 30, 400
"""Bounds of the words that a summary is to have."""
_CLOSING = "[\"')\\]*\u201d\u2019\u00bb\u300d\u300f\uff09]*"
_END = re.compile(
    rf"(?:(?<!\b\d)(?<!\b\d\d)[.!?\u2026\u061f]{_CLOSING}(?!\S)|[\u3002\uff01\uff1f]{_CLOSING}|\n)\s*"
)
"""Finds the ends of sentences and lines. A point behind one or two digits numbers a line."""


class NotSummarised(Exception):
    """Raised when no summary was written, and the chat is as it was. The message is for the page."""


def summary_of(path: Sequence[Message], files: Sequence[Attachment]) -> PromptMessage:
    """Return the message that replaces a part of a chat in the prompt: the summary at its end, and its files."""
    return PromptMessage("user", with_files(_SUMMARY.format(text=path[-1].summary), files), stays=True)


def unsummarised(path: Sequence[Message]) -> int:
    """Return the index in a path of the first message that no summary replaces."""
    return next((at for at in range(len(path), 0, -1) if path[at - 1].summary), 0)


@dataclass(frozen=True, slots=True)
class _Part:
    until: int
    """The last message that it replaces."""
    turns: int
    prompt: Prompt
    served: ServedModel


class Compaction:
    def __init__(self, store: Store, completions: Completions, said: ToPrompt) -> None:
        self._store = store
        self._completions = completions
        self._said = said
        self.failures: dict[tuple[int, int], str] = {}
        """Why the last summary failed, by user and chat, until a page has shown it."""

    def frames(
        self, user_id: int, conversation_id: int, stop: threading.Event, leaf: int | None = None
    ) -> Generator[Frame, None, None]:
        """Have the model summarise the turns that are left out next, above `leaf`. Yields frames without text.
        Raises NotSummarised, and as Completions.complete."""
        self.failures.pop((user_id, conversation_id), None)
        try:
            yield from self._frames(user_id, conversation_id, stop, leaf)
        except Exception as error:
            self.failures[user_id, conversation_id] = logs.error_message(error)
            raise

    def _frames(
        self, user_id: int, conversation_id: int, stop: threading.Event, leaf: int | None
    ) -> Generator[Frame, None, None]:
        path = self._store.messages.path(user_id, conversation_id, leaf)
        last, part = yield from self._written(user_id, conversation_id, path, stop)
        text, cut = split_reasoning(last.text).answer.strip(), last.finish in ("length", "loop")
        text = _whole_sentences(text, once=last.finish == "loop") if cut else text
        ended = (cut or last.finish in ("end", "stop")) and not stop.is_set()
        if part is None or not ended or not text:
            why = last.notice if last.finish == "error" else None
            said = _("{why} The chat is as it was.")
            raise NotSummarised(said.format(why=why or _("The summary was not finished.")))
        self._store.messages.set_summary(user_id, part.until, text)
        done = plural(
            "The oldest turn is summarised in {words:,} words.",
            "The {n:,} oldest turns are summarised in {words:,} words.",
            part.turns,
            words=_words(text),
        )
        where = _(
            "The summary is in the chat, above the turns that the model still reads in full. You can edit it."
        )
        rest = self._left_out(part.served, user_id, self._store.messages.path(user_id, conversation_id, leaf))
        if rest:
            where = plural(
                "{n:,} turn after them is still left out: summarise once more.",
                "{n:,} turns after them are still left out: summarise once more.",
                rest,
            )
        limit = _("It came to its limit and ends with its last whole sentence.") if cut else ""
        said = " ".join(filter(None, (done, limit, where)))
        yield Frame("done", finish="end", notice=said, outgrown=rest > 0)

    def _written(
        self,
        user_id: int,
        conversation_id: int,
        path: Sequence[Message],
        stop: threading.Event,
    ) -> Generator[Frame, None, tuple[Frame, _Part | None]]:
        """Have the model write a summary; return the last frame and its part of the chat."""
        part: _Part | None = None

        def begin(served: ServedModel) -> ReplyStream:
            nonlocal part
            off: Reasoning = "off" if "off" in served.prompts.thinking.choices else ""
            most = min(_MOST_TOKENS, served.prompts.context_length // 4)
            settings = GenerationSettings(max_new_tokens=most, end_loops=True, reasoning=off)
            part = self._oldest(served, user_id, path, settings)
            allowed = self._store.users.drafts_from(user_id, conversation_id)
            options = ReplyOptions(
                user_id, settings, stop, chat=conversation_id, drafts_from=allowed, learns=False
            )
            return self._completions.reply_to(served, part.prompt, options)

        last = Frame("waiting")
        with closing(self._completions.answer(begin, stop)) as written:
            for last in written:
                if last.phase == "waiting":
                    yield last
                elif last.phase != "done":
                    yield Frame(
                        "summarising",
                        figures=last.figures,
                        prompt_read=last.prompt_read,
                        prompt_tokens=last.prompt_tokens,
                    )
        return last, part

    def _left_out(self, served: ServedModel, user_id: int, path: Sequence[Message]) -> int:
        quarter = served.prompts.context_length // 4
        with suppress(PromptError):
            said = self._said(served, user_id, path)
            return served.prompts.build(said, quarter, served.end_ids, spare=quarter).dropped_turns
        left = [message for message in path[unsummarised(path) :] if message.role != "system"]
        return len(turns_of(left)) - 1  # the newest turn always goes into the prompt

    def _oldest(
        self, served: ServedModel, user_id: int, path: Sequence[Message], settings: GenerationSettings
    ) -> _Part:
        """Return the oldest turns, as many as are to be replaced and fit the prompt that asks for their summary."""
        left = [message for message in path[unsummarised(path) :] if message.role != "system"]
        turns, count = turns_of(left), self._left_out(served, user_id, path)
        if count <= 0:
            raise NotSummarised(_("Nothing has to be summarised: the chat fits the context window."))
        while count:
            until: int = turns[count - 1][-1].id
            part = [message for message in path if message.id <= until]  # along a path ids only grow
            characters = sum(len(message.text) for turn in turns[:count] for message in turn)
            words = min(
                _MOST_WORDS, settings.max_new_tokens // 20 * 10, max(_FEW_WORDS, characters // _CHARACTERS)
            )
            ask = SUMMARISE + _LENGTH.format(least=words // 2, words=words)
            asked = [*map(_answered, self._said(served, user_id, part)), PromptMessage("user", ask)]
            with suppress(PromptError):
                prompt = served.prompts.build(
                    asked, settings.max_new_tokens, served.end_ids, settings.reasoning
                )
                if not prompt.dropped_turns:
                    return _Part(until, count, prompt, served)
            count //= 2
        raise NotSummarised(_("The oldest turn and its files are too long to be summarised."))


def _words(text: str) -> int:
    """Count words; some languages write them without blanks."""
    return max(len(text.split()), len(text) // 12)


def _whole_sentences(text: str, *, once: bool) -> str:
    """Return the sentences and lines of a text that has no end; `once`: each one that comes again only once."""
    text += " "
    whole = [text[begin:end] for begin, end in pairwise([0, *(found.end() for found in _END.finditer(text))])]
    return "".join(dict.fromkeys(whole) if once else whole).strip()


def _answered(message: PromptMessage) -> PromptMessage:
    """Return a message for the prompt; of a reply that begins with a thought, only the answer."""
    answer = split_reasoning(message.text).answer if message.role == "assistant" else message.text
    return message if answer == message.text else replace(message, text=answer, tokens=())
