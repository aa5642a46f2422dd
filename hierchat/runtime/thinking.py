"""How a model thinks before it answers, found out from its tokenizer and template alone: what can be chosen, and by
which marks a thought is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from hierchat.config import Reasoning
from hierchat.reasoning import CLOSES, OPENS, join_reasoning, nearest_effort, split_reasoning
from hierchat.runtime.template import THOUGHT_FIELDS, ChatTemplate, PromptError

_SWITCHES: tuple[tuple[str, Mapping[Reasoning, Any]], ...] = (
    ("enable_thinking", {"off": False, "on": True}),
    ("thinking", {"off": False, "on": True}),
    ("reasoning_effort", {"off": "none", "low": "low", "medium": "medium", "high": "high"}),
)
"""Variables of templates, and what they are set to."""
_FORMS = (
    (OPENS, CLOSES),  # Qwen, DeepSeek, SmolLM, GLM, Nemotron, OLMo, Granite
    ("<|channel>", "<channel|>"),  # Gemma 4
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
)
"""The marks around a thought."""
_NAMED = {"<|channel>": "thought\n"}
"""What stands behind an opening mark and belongs to it."""
_CHANNEL, _MESSAGE, _CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|start|>", "<|end|>", "<|call|>", "<|return|>")
HARMONY = (_CHANNEL, _MESSAGE)
"""Marks of gpt-oss, which writes a message for each of its channels."""
_TAIL = 16
"""Tokens that are looked at for a mark."""
_THOUGHT = "hierchatthoughtgoeshere"
_QUESTION = {"role": "user", "content": "?"}


_Piece = tuple[str, bool]
"""A mark, or the text between two; and whether it is a mark."""


class ThinkingFormat:
    """Reads from one model's tokenizer and template how it thinks."""

    def __init__(self, tokenizer: Any, offered: tuple[Reasoning, ...] | None = None) -> None:
        """`offered`: what can be asked of a model elsewhere, whose template is not here."""
        self._tokenizer = tokenizer
        self._rendering = ChatTemplate(tokenizer)
        self._offered = offered

    @property
    def choices(self) -> tuple[Reasoning, ...]:
        """How much it can be asked to think, from the least on; empty where that is not asked."""
        return tuple(self._switch[1]) if self._offered is None else self._offered

    def arguments(self, chosen: Reasoning) -> dict[str, Any]:
        """Return the template's variables for what was chosen, or the nearest that it offers."""
        name, values = self._switch
        if not chosen or not values:
            return {}
        return {name: values[nearest_effort(chosen, values)]}

    def as_written(self, text: str, tokens: Sequence[int]) -> bool:
        """Tell whether an earlier reply is in the prompt as it was written: not where the template leaves out what was
        thought, or writes marks of its own around it."""
        if not tokens or self._harmony:
            return False
        if not split_reasoning(text).answer_at:
            return True
        return self.keeps and self.text(tokens[:_TAIL]).lstrip().startswith(OPENS)

    @cached_property
    def keeps(self) -> bool:
        """Whether the template leaves earlier thoughts in the prompt as they were written."""
        if self._harmony or self._form != _FORMS[0]:
            return False
        said = {"content": join_reasoning(_THOUGHT, "!")}
        if self.field:
            said = {"content": "!", self.field: _THOUGHT}
        chat = [_QUESTION, {"role": "assistant"} | said, _QUESTION]
        return _THOUGHT in (self._rendered(chat) or _THOUGHT)

    @cached_property
    def field(self) -> str | None:
        """The field of a message in which the template looks for its thought."""
        template = self._template
        found = (f for f in THOUGHT_FIELDS if re.search(rf"\.{f}\b|['\"]{f}['\"]", template))
        return next(found, None)

    def opened(self, prompt: Sequence[int]) -> bool:
        """Tell whether a prompt ends with the mark behind which the model thinks."""
        return self._at_its_mark(self._tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False))

    @cached_property
    def always_opened(self) -> bool:
        """Whether that is so where nothing else is chosen."""
        return self._at_its_mark(self._rendered([_QUESTION]) or "")

    def _at_its_mark(self, prompt: str) -> bool:
        opens = self._form[0]
        return prompt.rstrip().endswith((opens, opens + _NAMED.get(opens, "").rstrip()))

    def text(self, tokens: Sequence[int], *, opened: bool = False) -> str:
        """Decode a reply, its thought between the usual marks, other special tokens left out. More tokens only add to
        the text. `opened`: its prompt ended with the opening mark."""
        text = _channels(self._pieces(tokens)) if self._harmony else self._marked(tokens)
        return f"{OPENS}\n{text}" if opened else text

    def _marked(self, tokens: Sequence[int]) -> str:
        text = "".join(text for text, _ in self._pieces(tokens))
        opens, closes = self._form
        if opens == OPENS:
            return text
        before, found, behind = text.partition(opens)
        if not found:
            return text.replace(closes, f"\n{CLOSES}\n\n", 1)
        name = _NAMED.get(opens, "")
        behind = "" if name.startswith(behind) else behind.removeprefix(name)
        return before + f"{OPENS}\n" + behind.replace(closes, f"\n{CLOSES}\n\n", 1)

    def _pieces(self, tokens: Sequence[int]) -> Iterator[_Piece]:
        begin = 0
        for at, token in enumerate(tokens if self._marks else ()):
            if mark := self._marks.get(token):
                if begin < at:
                    yield self._decoded(tokens[begin:at]), False
                yield mark, True
                begin = at + 1
        if begin < len(tokens):
            yield self._decoded(tokens[begin:]), False

    def _decoded(self, tokens: Sequence[int]) -> str:
        decode = self._tokenizer.decode
        return str(decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def _harmony(self) -> bool:
        vocabulary = self._tokenizer.get_vocab()
        return all(mark in vocabulary for mark in HARMONY)

    @cached_property
    def _form(self) -> tuple[str, str]:
        vocabulary = self._tokenizer.get_vocab()
        return next((form for form in _FORMS if all(mark in vocabulary for mark in form)), _FORMS[0])

    @cached_property
    def _marks(self) -> dict[int, str]:
        """Special tokens that must not be left out of the text unseen."""
        marks = (*HARMONY, _CONSTRAIN, *_ENDS) if self._harmony else self._form
        vocabulary, added = self._tokenizer.get_vocab(), self._tokenizer.added_tokens_decoder
        found = {vocabulary[mark]: mark for mark in marks if mark in vocabulary}
        return {id: mark for id, mark in found.items() if id in added and added[id].special}

    @cached_property
    def _switch(self) -> tuple[str, Mapping[Reasoning, Any]]:
        """The variable that the template reads, and the values that make a difference."""
        for name, values in _SWITCHES:
            if not re.search(rf"\b{name}\b", self._template):
                continue
            if values["off"] == "none" and not re.search("['\"]none['\"]", self._template):
                values = {choice: value for choice, value in values.items() if choice != "off"}
            rendered = {one: self._rendered([_QUESTION], **{name: value}) for one, value in values.items()}
            offered = {choice: values[choice] for choice, prompt in rendered.items() if prompt is not None}
            if len({rendered[choice] for choice in offered}) > 1:
                return name, offered
        return "", {}

    @property
    def _template(self) -> str:
        return str(self._tokenizer.chat_template or "")

    def _rendered(self, chat: list[dict[str, Any]], **more: Any) -> str | None:
        """None where the template refuses it."""
        try:
            return self._rendering.text(chat, add_generation_prompt=True, **more)
        except PromptError:
            return None


def _channels(pieces: Iterator[_Piece]) -> str:
    """A reply of gpt-oss: its channel of analysis is the thought, a message to a function is a call."""
    thought = answer = header = ""
    thinks = ended = False
    where = "answer"
    closing = ""
    for text, is_mark in pieces:
        if not is_mark:
            if where == "header":
                header += text
            elif where == "analysis" and not answer:
                thought += text
            elif where == "answer":
                answer += text
            continue
        if where == "answer":
            answer += closing
            closing = ""
        match text:
            case "<|channel|>":
                where, header = "header", ""
            case "<|constrain|>":
                header += " "
            case "<|message|>":
                where = "analysis" if header.startswith("analysis") else "answer"
                if where == "analysis":
                    thought += "\n\n" if thinks else ""
                    thinks = True
                else:
                    ended = True
                    if called := re.search(r"to=functions\.([\w.-]+)", header):
                        answer += f'<tool_call>\n{{"name": "{called[1]}", "arguments": '
                        closing = "}\n</tool_call>"
            case _:
                where = "between"
    if not thinks:
        return answer
    return f"{OPENS}\n{thought}" + (f"\n{CLOSES}\n\n{answer}" if ended else "")
