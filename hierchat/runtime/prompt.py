"""Build prompt tokens from a conversation: by the chat template, of the turns that fit the context window."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, groupby, takewhile
from operator import itemgetter
from typing import Any

from hierchat.config import Reasoning
from hierchat.language import later
from hierchat.reasoning import split_reasoning
from hierchat.runtime.template import ChatMessages, ChatTemplate, PromptError, TemplateRefused, ThinkingFormat
from hierchat.texts.text_files import pieces

MARK = "hierchatreplygoeshere"
"""Stands for a reply while the template is rendered; letters alone, so that no template or tokenizer merges it."""
PIECE = 1 << 16
"""Characters that are tokenised at once, where a text may turn out to be too long."""
USUAL_BYTES = 4
"""Bytes of UTF-8 in one token, until something is known of the text."""
MOST_BYTES = 8
"""In the tokens of hardly any text: what has more is counted in pieces before it is rendered."""
COUNTED = 4
"""Contexts' worth of tokens that are counted of a message that is too long."""
LEAST_FILLED = 0.25
"""Share of the room that is left in use where turns are left out, if shorter steps allow it."""
GUESSES = 4
"""Cuts that are guessed from the length of a token before the rest is halved."""


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """Message of a prompt. A reply by this model has its tokens; its text begins with its thought (reasoning.py)."""

    role: str
    text: str
    tokens: tuple[int, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    """Tools that a reply called, each with "name" and "arguments", as the template takes them."""


Tools = Sequence[Mapping[str, Any]]
"""What a reply may call: OpenAI's description of each, which templates take as it is."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt tokens to answer, and how many of the oldest turns no longer fit."""

    ids: list[int]
    dropped_turns: int = 0
    thinking: bool = False
    """Whether it ends where the model begins to think: its reply does not say so again."""


class MessageTooLong(PromptError):
    """The last message alone does not fit the context window."""


def control_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that no text holds, such as those that a template writes between messages."""
    return frozenset(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)


class PromptBuilder:
    """Builds prompts for one model's tokenizer and context window. Replies keep their tokens, so that slots stay valid.
    Control tokens that a user types are plain text."""

    knows_tokens = True
    """Whether its tokens are the model's own; else replies enter as text."""

    def __init__(
        self, tokenizer: Any, context_length: int, system_prompt: str | None = None, model: str = "this model"
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, model)
        self.context_length = context_length
        self.system_prompt = system_prompt
        self.thinking = ThinkingFormat(tokenizer)
        model_of = getattr(getattr(tokenizer, "_tokenizer", None), "model", None)
        if resize := getattr(model_of, "_resize_cache", None):
            resize(0)  # each thread would keep words of deleted texts, and no other thread can take them out
        self.control_tokens = control_tokens(tokenizer)
        self._mark: list[int] = tokenizer(MARK, add_special_tokens=False)["input_ids"]

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text alone, for drafting; a long one is tokenised in pieces."""
        return [token for piece in pieces(text, PIECE) for token in self._plain(piece)]

    def count(self, texts: Iterable[str], most: int | None = None) -> int:
        """Count the tokens of texts, each alone. Stops where there are more than `most`: the rest is not looked at."""
        total = 0
        for text in texts:
            for piece in pieces(text, PIECE):
                total += len(self._plain(piece))
                if most is not None and total > most:
                    return total
        return total

    def build(
        self,
        messages: Sequence[PromptMessage],
        room: int,
        end_ids: Collection[int] = (),
        reasoning: Reasoning = "",
        tools: Tools = (),
    ) -> Prompt:
        """Build a prompt of the system prompt and the latest turns that leave `room` tokens, at most a quarter of the
        context, for the reply. Turns are left out in large steps, so that the prompt's beginning, and its slots, stay
        the same. Raises MessageTooLong."""
        limit = self._limit(room)
        system = list(takewhile(lambda message: message.role == "system", messages))
        turns = _turns_of(messages[len(system) :]) or [[]]

        @cache
        def render(dropped: int) -> list[int] | None:  # None: far too long
            said = [*system, *(message for turn in turns[dropped:] for message in turn)]
            return None if self._far_longer(said, limit) else self._render(said, end_ids, tools, reasoning)

        dropped, ids = self._cut(turns, limit, render)
        if ids is None:
            beside = self._around(system, end_ids, reasoning)
            raise self._too_long([message.text for message in turns[-1]], limit - beside)
        return Prompt(ids, dropped, self.thinking.opened(ids))

    def message_room(
        self, room: int, system_prompt: str = "", end_ids: Collection[int] = (), reasoning: Reasoning = ""
    ) -> int:
        """Return how many tokens a message may have where `build` is to leave `room` for the reply."""
        system = [PromptMessage("system", system_prompt)] if system_prompt else []
        return self._limit(room) - self._around(system, end_ids, reasoning)

    @property
    def most_counted(self) -> int:
        """Return the number of tokens beyond which a message's tokens are not counted to their end."""
        return COUNTED * self.context_length

    def whole(
        self,
        messages: Sequence[PromptMessage],
        end_ids: Collection[int] = (),
        tools: Tools = (),
        reasoning: Reasoning = "",
    ) -> Prompt:
        """Render all of a conversation. Raises PromptError: MessageTooLong where that leaves no room for a reply."""
        self.require_short(*map(self._shown, messages))
        ids = self._render(messages, end_ids, tools, reasoning)
        self.require_room(ids)
        return Prompt(ids, thinking=self.thinking.opened(ids))

    def require_room(self, ids: Sequence[int]) -> None:
        """Raise MessageTooLong where a prompt leaves no room for a reply."""
        if len(ids) >= self.context_length:
            raise self._no_room(f"{len(ids):,}")

    def require_short(self, *texts: str) -> None:
        """Raise MessageTooLong where a prompt is far beyond the context, before it is tokenised whole."""
        if self._far_longer([PromptMessage("user", text) for text in texts], self.context_length):
            raise self._no_room(later(f"more than {2 * self.context_length:,}"))

    def _no_room(self, tokens: str) -> MessageTooLong:
        return MessageTooLong(
            f"The prompt has {tokens} tokens. The model's context holds {self.context_length:,}, and one is needed for "
            "a reply. Shorten the prompt, or choose a model that remembers more."
        )

    @cached_property
    def takes_tools(self) -> bool:
        """Tell whether the template shows the model the tools that it may call, in a way that is understood here."""
        function = {"name": MARK, "description": "", "parameters": {"type": "object"}}
        understood = "<tool_call>" in str(self.tokenizer.chat_template or "")
        return understood and self._shows_mark([], [{"type": "function", "function": function}])

    def _limit(self, room: int) -> int:
        return self.context_length - min(room, self.context_length // 4)

    def _plain(self, text: str) -> list[int]:
        # Texts longer than the model's context are no mistake here.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _cut(
        self, turns: Sequence[Sequence[PromptMessage]], limit: int, render: Callable[[int], list[int] | None]
    ) -> tuple[int, list[int] | None]:
        """Choose how many of the oldest turns to leave out, and render the rest; None if the last is too long. The
        first kept turn is the first beyond a multiple of `unit` bytes, so the beginning depends on earlier turns
        alone."""
        before = [0, *accumulate(sum(_size(self._shown(one)) for one in turn) for turn in turns)]
        unit, rate = 1 << (self.context_length.bit_length() - 1), float(USUAL_BYTES)
        low, high = -1, len(turns)  # too long, and not
        found: list[int] | None = None
        if before[-1] - before[-2] > limit and _longer(render(high - 1), limit):
            return high, None  # no cut helps where the question alone is too long
        while unit and high - low > 1 and (found is None or len(found) < LEAST_FILLED * limit):
            places = [
                at for at in range(low + 1, high) if not at or before[at] // unit > before[at - 1] // unit
            ]
            first, last = 0, len(places)
            for tried in range(len(places) + 1):
                if first == last:
                    break
                middle = (first + last) // 2
                if tried < GUESSES:
                    fits = before[-1] - rate * limit
                    middle = min(max(bisect_left(places, fits, key=before.__getitem__), first), last - 1)
                ids = render(places[middle])
                if _longer(ids, limit):
                    low, first = places[middle], middle + 1
                else:
                    high, last, found = places[middle], middle, ids
                rate = (before[-1] - before[places[middle]]) / (2 * limit if ids is None else len(ids))
            unit //= 2
        return high, found

    def _shown(self, message: PromptMessage) -> str:
        whole = message.role != "assistant" or self.thinking.keeps
        return message.text if whole else split_reasoning(message.text).answer

    def _far_longer(self, said: Sequence[PromptMessage], limit: int) -> bool:
        texts = [self._shown(message) for message in said]
        if sum(map(_size, texts)) <= MOST_BYTES * limit:
            return False
        # Twice as many: the ends of pieces make a few more than there are.
        return self.count(texts, 2 * limit) > 2 * limit

    def _around(self, system: Sequence[PromptMessage], end_ids: Collection[int], reasoning: Reasoning) -> int:
        """Count the tokens of a chat around one question; of a far too long system prompt, about."""
        if self._far_longer(system, self.context_length):
            return 2 * self.context_length
        ids = self._render([*system, PromptMessage("user", MARK)], end_ids, reasoning=reasoning)
        return len(ids) - len(self._mark)

    def _too_long(self, texts: Sequence[str], room: int) -> MessageTooLong:
        if room <= 0:
            return MessageTooLong(
                "The system prompt leaves no room for a message. Shorten it or your notes, or choose another model."
            )
        count = self.count(texts, self.most_counted)
        over = max(count - room, 1)  # where it meets the template's words, a token more or less
        if count > self.most_counted:
            return MessageTooLong(
                f"This message has more than {self.most_counted:,} tokens, and the model has room for {room:,}. "
                "Shorten it, or choose a model that remembers more."
            )
        return MessageTooLong(
            f"This message is {over:,} tokens too long: it has {room + over:,}, and the model has room for {room:,}. "
            "Shorten it, or choose a model that remembers more."
        )

    def _render(
        self,
        said: Sequence[PromptMessage],
        end_ids: Collection[int],
        tools: Tools = (),
        reasoning: Reasoning = "",
    ) -> list[int]:
        arguments = self.thinking.arguments(reasoning)
        written = [self.knows_tokens and self.thinking.as_written(one.text, one.tokens) for one in said]
        spliced = [message for message, its in zip(said, written, strict=True) if its]
        marked = [self._message(one, MARK if its else None) for one, its in zip(said, written, strict=True)]
        ids = self._template(marked, tools, arguments)
        places = _find(ids, self._mark)
        if len(places) != len(spliced):  # the user wrote the mark, or the template changes replies
            return self._template([self._message(message) for message in said], tools, arguments)
        out: list[int] = []
        read = 0
        for place, message in zip(places, spliced, strict=True):
            out += ids[read:place]
            out += message.tokens
            read = place + len(self._mark)
            if message.tokens[-1] in end_ids and read < len(ids) and ids[read] == message.tokens[-1]:
                read += 1  # the reply brought its own end
        return out + ids[read:]

    def _message(self, message: PromptMessage, text: str | None = None) -> dict[str, Any]:
        """Return a message as the template takes it, with `text`, its thought where the template reads it."""
        said: dict[str, Any] = {"role": message.role, "content": message.text if text is None else text}
        if message.calls:
            said["tool_calls"] = [{"type": "function", "function": dict(call)} for call in message.calls]
        if message.role != "assistant" or text is not None:
            return said
        parts = split_reasoning(message.text)
        if parts.thought and self.thinking.field:
            return said | {"content": parts.answer, self.thinking.field: parts.thought}
        return said if self.thinking.keeps else said | {"content": parts.answer}

    def _template(self, said: ChatMessages, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        chat = list(said)
        if self.system_prompt and not any(message["role"] == "system" for message in said):
            chat.insert(0, {"role": "system", "content": self.system_prompt})
        if not self._takes_system:
            chat = _told_in_question(chat)
        try:
            return self._encode(chat, tools, arguments)
        except TemplateRefused:
            # Some templates insist on question and reply in turn; a question may have stayed without a reply, and an
            # imported chat may begin with one.
            together = joined(chat)
            if len(together) == len(chat) or any("tool_calls" in message for message in chat):
                raise
            return self._encode(together, tools, arguments)

    @cached_property
    def _takes_system(self) -> bool:
        return self._shows_mark([{"role": "system", "content": MARK}], [])

    def _shows_mark(self, before: ChatMessages, tools: Tools) -> bool:
        with suppress(PromptError):
            return MARK in self.template.text([*before, {"role": "user", "content": "?"}], tools)
        return False

    def _encode(self, chat: ChatMessages, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        return self.template.ids(chat, tools, add_generation_prompt=True, **arguments)


def _turns_of(messages: Iterable[PromptMessage]) -> list[list[PromptMessage]]:
    """Group messages into turns: each begins with one of the user."""
    turns: list[list[PromptMessage]] = []
    for message in messages:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _told_in_question(chat: ChatMessages) -> ChatMessages:
    told = [message["content"] for message in chat if message["role"] == "system"]
    rest = [dict(message) for message in chat if message["role"] != "system"]
    question = next((message for message in rest if message["role"] == "user"), None)
    if told and question is None:
        rest.insert(0, question := {"role": "user", "content": ""})
    if told and question is not None:
        question["content"] = "\n\n".join(filter(None, [*told, question["content"]]))
    return rest


def joined(chat: ChatMessages) -> ChatMessages:
    """Join messages of one role in a row, and leave out what stands before the first question."""
    rows: ChatMessages = [
        {"role": role, "content": "\n\n".join(message["content"] for message in row)}
        for role, row in groupby(chat, key=itemgetter("role"))
    ]
    roles = [message["role"] for message in rows]
    question = roles.index("user") if "user" in roles else 0
    return [message for place, message in enumerate(rows) if place >= question or message["role"] == "system"]


def _find(ids: list[int], mark: list[int]) -> list[int]:
    places: list[int] = []
    at = 0
    with suppress(ValueError):  # there is no more
        while True:
            at = ids.index(mark[0], at)
            if ids[at : at + len(mark)] == mark:
                places.append(at)
                at += len(mark) - 1
            at += 1
    return places


def _longer(ids: list[int] | None, limit: int) -> bool:
    return ids is None or len(ids) > limit


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
