"""Compact a chat that outgrows the context: the model writes a summary of its oldest turns, which stands in
their place in the prompt. The turns themselves stay in the chat, and so do their files in the prompt."""

import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise

from hierchat.chat.completions import Completions, ReplyOptions
from hierchat.chat.frames import Frame
from hierchat.chat.reply_stream import ReplyStream
from hierchat.config import GenerationSettings, Reasoning
from hierchat.language import _
from hierchat.reasoning import split_reasoning
from hierchat.runtime.prompt import Prompt, PromptMessage, turns_of
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import Store
from hierchat.store.records import Attachment, Message
from hierchat.texts.attachments import with_files

ASK = (
    "Summarise the conversation so far, so that it can go on without its text: what was asked, found and decided, and "
    "the names, numbers and code that are still needed. Answer in its language, with the summary alone"
)
_LENGTH = ", in at most {words} words."
_SUMMARY = "Summary of the conversation so far:\n\n{text}"
_MOST_TOKENS = 2048
"""Bounds a summary, with what a model that cannot be kept from it thinks before."""
_MOST_WORDS = 300
_CLOSING = "[\"')\\]*\u201d\u2019\u00bb\u300d\u300f\uff09]*"
_END = re.compile(
    rf"(?:(?<!\b\d)(?<!\b\d\d)[.!?\u2026\u061f]{_CLOSING}(?!\S)|[\u3002\uff01\uff1f]{_CLOSING}|\n)\s*"
)
"""Finds the ends of sentences and lines. A point behind one or two digits numbers a line."""
Said = Callable[[ServedModel, int, Sequence[Message]], list[PromptMessage]]


class NotSummarised(Exception):
    """Raised when no summary was written, and the chat is as it was. The message is for the page."""


def summary_of(path: Sequence[Message], files: Sequence[Attachment]) -> PromptMessage:
    """Return the message that replaces a part of a chat in the prompt: the summary at its end, and its files."""
    return PromptMessage("user", with_files(_SUMMARY.format(text=path[-1].summary), files), stays=True)


def unsummarised(path: Sequence[Message]) -> int:
    """Return the index in a path of the first message that no summary replaces."""
    return next((at for at in range(len(path), 0, -1) if path[at - 1].summary), 0)


class Compaction:
    """Writes summaries of chats. `said`: turns a user's messages into those of the prompt."""

    def __init__(self, store: Store, completions: Completions, said: Said) -> None:
        self._store = store
        self._completions = completions
        self._said = said

    def frames(
        self, user_id: int, conversation_id: int, stop: threading.Event, leaf: int | None = None
    ) -> Generator[Frame, None, None]:
        """Have the model summarise the turns that are left out next, above `leaf` or the current one. Yields
        frames without text. Raises NotSummarised, and as Completions.complete."""
        path = self._store.messages.path(user_id, conversation_id, leaf)
        until = 0

        def begin(served: ServedModel) -> ReplyStream:
            nonlocal until
            off: Reasoning = "off" if "off" in served.prompts.thinking.choices else ""
            most = min(_MOST_TOKENS, served.prompts.context_length // 4)
            settings = GenerationSettings(max_new_tokens=most, end_loops=True, reasoning=off)
            until, prompt = self._oldest(served, user_id, path, settings)
            allowed = self._store.users.drafts_from(user_id, conversation_id)
            options = ReplyOptions(user_id, settings, stop, drafts_from=allowed, learns=False)
            return self._completions.reply_to(served, prompt, options)

        last, doing = Frame("waiting"), Frame("reading", notice=_("The oldest turns are being summarised."))
        with closing(self._completions.answer(begin, stop)) as written:
            for last in written:
                if last.phase in ("reading", "writing"):
                    yield replace(doing, prompt_read=last.prompt_read, prompt_tokens=last.prompt_tokens)
        text, cut = split_reasoning(last.text).answer.strip(), last.finish in ("length", "loop")
        text = _whole_sentences(text, once=last.finish == "loop") if cut else text
        if stop.is_set() or not (cut or last.finish in ("end", "stop")) or not text:
            why = (
                last.notice if last.finish == "error" and last.notice else _("The summary was not finished.")
            )
            raise NotSummarised(_("{why} The chat is as it was.").format(why=why))
        self._store.messages.set_summary(user_id, until, text)
        ended = _("The summary came to its limit and ends with its last whole sentence. You can edit it.")
        yield Frame("done", finish="end", notice=ended if cut else None)

    def _oldest(
        self, served: ServedModel, user_id: int, path: Sequence[Message], settings: GenerationSettings
    ) -> tuple[int, Prompt]:
        """Return the index of the last message to summarise, and the prompt that asks for the summary."""
        turns = turns_of(message for message in path[unsummarised(path) :] if message.role != "system")
        said, quarter = self._said(served, user_id, path), served.prompts.context_length // 4
        ask = ASK + _LENGTH.format(words=min(_MOST_WORDS, settings.max_new_tokens // 20 * 10))
        count = len(turns) - 1  # where the last one alone leaves no quarter free
        with suppress(PromptError):
            count = served.prompts.build(said, quarter, served.end_ids, spare=quarter).dropped_turns
        if count <= 0:
            raise NotSummarised(_("Nothing has to be summarised: the chat fits the context window."))
        while count:
            until: int = turns[count - 1][-1].id
            part = [message for message in path if message.id <= until]  # along a path ids only grow
            asked = [*map(_answered, self._said(served, user_id, part)), PromptMessage("user", ask)]
            with suppress(PromptError):
                prompt = served.prompts.build(
                    asked, settings.max_new_tokens, served.end_ids, settings.reasoning
                )
                if not prompt.dropped_turns:
                    return until, prompt
            count //= 2
        raise NotSummarised(_("The oldest turn and its files are too long to be summarised."))


def _whole_sentences(text: str, *, once: bool) -> str:
    """Return the sentences and lines of a text that has no end; `once`: each one that comes again only once."""
    text += " "
    whole = [text[begin:end] for begin, end in pairwise([0, *(found.end() for found in _END.finditer(text))])]
    return "".join(dict.fromkeys(whole) if once else whole).strip()


def _answered(message: PromptMessage) -> PromptMessage:
    """Return a message for the prompt; of a reply that begins with a thought, only the answer."""
    answer = split_reasoning(message.text).answer if message.role == "assistant" else message.text
    return message if answer == message.text else replace(message, text=answer, tokens=())
