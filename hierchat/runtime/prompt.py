"""From a conversation to prompt tokens: the chat template, and the turns that fit the context window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from hierchat.config import Reasoning
from hierchat.runtime.template import Chat, ChatTemplate, PromptError, TemplateRefused
from hierchat.runtime.thinking import Thinking
from hierchat.thoughts import parted

MARK = "hierchatreplygoeshere"
"""Stands for a reply while the template is rendered; letters alone, so that no template or tokenizer merges it."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message. A reply brings the tokens that the model wrote, where it wrote them itself; its text begins with
    what it thought (thoughts.py)."""

    role: str
    text: str
    tokens: tuple[int, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    """Tools that a reply called, each with "name" and "arguments", as the template takes them."""


Tools = Sequence[Mapping[str, Any]]
"""What a reply may call: OpenAI's description of each, which templates take as it is."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to answer, and how many of the oldest turns no longer fit."""

    ids: list[int]
    dropped_turns: int = 0
    thinking: bool = False
    """Whether it ends where the model begins to think: its reply does not say so again."""


class MessageTooLong(PromptError):
    """The last message alone does not fit the context window."""


class PromptBuilder:
    """Knows one model's tokenizer and context window.

    Replies enter as the tokens that were written, not as their text tokenised again, so that the key-value slots of
    earlier turns stay valid. What a user types as a control token is plain text.
    """

    knows_tokens = True
    """Whether its tokens are the model's own."""

    def __init__(
        self,
        tokenizer: Any,
        context_length: int,
        system_prompt: str | None = None,
        model: str = "this model",
    ) -> None:
        """`model`: its name, for errors."""
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, model)
        self.context_length = context_length
        self.system_prompt = system_prompt
        self.thinking = Thinking(tokenizer)
        self._mark: list[int] = tokenizer(MARK, add_special_tokens=False)["input_ids"]

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text alone, for drafting."""
        # Texts longer than the model's context are no mistake here.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def build(
        self, messages: Sequence[Said], room: int, end_ids: Collection[int] = (), reasoning: Reasoning = ""
    ) -> Prompt:
        """Keeps the system prompt and drops the oldest turns whole until `room` tokens are left for the reply.

        `room` is reduced to a quarter of the context where it asks for more. Raises PromptError.
        """
        limit = self.context_length - min(room, self.context_length // 4)
        system = list(takewhile(lambda message: message.role == "system", messages))
        turns = _turns(messages[len(system) :]) or [[]]

        @cache
        def without(dropped: int) -> list[int]:
            said = [*system, *(message for turn in turns[dropped:] for message in turn)]
            return self._render(said, end_ids, reasoning=reasoning)

        def fits(dropped: int) -> bool:
            return len(without(dropped)) <= limit

        dropped = 0 if fits(0) else bisect_left(range(len(turns)), True, lo=1, key=fits)
        if dropped < len(turns):
            ids = without(dropped)
            return Prompt(ids, dropped, self.thinking.opened(ids))
        ids = without(len(turns) - 1)
        raise MessageTooLong(
            f"This message is {len(ids) - limit:,} tokens too long: it has {len(ids):,}, and the model has room for "
            f"{limit:,}. Shorten it, or choose a model that remembers more."
        )

    def whole(
        self,
        messages: Sequence[Said],
        end_ids: Collection[int] = (),
        tools: Tools = (),
        reasoning: Reasoning = "",
    ) -> Prompt:
        """All of it. Raises PromptError: MessageTooLong where that leaves no room for a reply."""
        ids = self._render(messages, end_ids, tools, reasoning)
        self.require_room(ids)
        return Prompt(ids, thinking=self.thinking.opened(ids))

    def require_room(self, ids: Sequence[int]) -> None:
        """Raises MessageTooLong where a prompt leaves no room for a reply."""
        if len(ids) >= self.context_length:
            raise MessageTooLong(
                f"The prompt has {len(ids):,} tokens. The model's context holds {self.context_length:,}, and one is "
                "needed for a reply. Shorten the prompt, or choose a model that remembers more."
            )

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template tells the model what it may call."""
        tool = {
            "type": "function",
            "function": {"name": MARK, "description": "", "parameters": {"type": "object"}},
        }
        try:
            chat = [{"role": "user", "content": "?"}]
            return MARK in self.template.text(chat, [tool])
        except PromptError:
            return False

    def _render(
        self, said: Sequence[Said], end_ids: Collection[int], tools: Tools = (), reasoning: Reasoning = ""
    ) -> list[int]:
        arguments = self.thinking.arguments(reasoning)
        spliced = [message for message in said if self.thinking.as_written(message.text, message.tokens)]
        marked = [self._message(message, MARK if message in spliced else None) for message in said]
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

    def _message(self, message: Said, text: str | None = None) -> dict[str, Any]:
        """As the template takes it, `text` in its place. What was thought goes where the template looks for it: it
        knows what of it the model is to see again."""
        said = {"role": message.role, "content": message.text if text is None else text} | _calls(message)
        if message.role != "assistant" or text is not None:
            return said
        parts = parted(message.text)
        if parts.thought and self.thinking.field:
            return said | {"content": parts.answer, self.thinking.field: parts.thought}
        return said if self.thinking.keeps else said | {"content": parts.answer}

    def _template(self, said: Chat, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
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
        """Whether the template has a place for a system prompt. Some refuse one, others leave it out."""
        chat = [{"role": "system", "content": MARK}, {"role": "user", "content": "?"}]
        try:
            return MARK in self.template.text(chat)
        except PromptError:
            return False

    def _encode(self, chat: Chat, tools: Tools, arguments: Mapping[str, Any]) -> list[int]:
        return self.template.ids(chat, tools, add_generation_prompt=True, **arguments)


def _calls(message: Said) -> dict[str, Any]:
    calls = [{"type": "function", "function": dict(call)} for call in message.calls]
    return {"tool_calls": calls} if calls else {}


def _turns(messages: Sequence[Said]) -> list[list[Said]]:
    """Each user message with what follows it."""
    turns: list[list[Said]] = []
    for message in messages:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _told_in_question(chat: Chat) -> Chat:
    """System messages as the beginning of the first question."""
    told = [message["content"] for message in chat if message["role"] == "system"]
    rest = [dict(message) for message in chat if message["role"] != "system"]
    question = next((message for message in rest if message["role"] == "user"), None)
    if told and question is None:
        rest.insert(0, question := {"role": "user", "content": ""})
    if told and question is not None:
        question["content"] = "\n\n".join(filter(None, [*told, question["content"]]))
    return rest


def joined(chat: Chat) -> Chat:
    """Messages of one role in a row as one, from the first question on."""
    rows: Chat = [
        {"role": role, "content": "\n\n".join(message["content"] for message in row)}
        for role, row in groupby(chat, key=itemgetter("role"))
    ]
    roles = [message["role"] for message in rows]
    question = roles.index("user") if "user" in roles else 0
    return [message for place, message in enumerate(rows) if place >= question or message["role"] == "system"]


def _find(ids: Sequence[int], mark: Sequence[int]) -> list[int]:
    places, at = [], 0
    while at <= len(ids) - len(mark):
        if list(ids[at : at + len(mark)]) == list(mark):
            places.append(at)
            at += len(mark)
        else:
            at += 1
    return places
