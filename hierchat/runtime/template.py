"""Render a tokenizer's chat template in a process that can be ended, and find out how a model thinks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from hierchat.child_process import ChildProcess
from hierchat.config import Reasoning
from hierchat.language import later
from hierchat.reasoning import CLOSES, OPENS, join_reasoning, nearest_effort, split_reasoning
from hierchat.runtime import template_program

ChatMessages = list[dict[str, Any]]
SECONDS = 5
"""Maximum time of the processor for one request, where the system counts it."""
THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Where templates look for the thought of an earlier reply."""
_LONGEST_REASON = 200


class PromptError(ValueError):
    """These messages make no prompt; the text says what to do."""


class TemplateRefused(PromptError):
    """The template does not take these messages; it may take others."""


class TemplateStopped(PromptError):
    """The template cannot be used at all."""


class ChatTemplate:
    """Renders a chat as transformers' apply_chat_template does. Without a template, messages are plain text."""

    def __init__(self, tokenizer: Any, model: str = "this model") -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._control: dict[str, re.Pattern[str]] = {}
        """Patterns of control tokens, by template."""

    def text(self, chat: ChatMessages, tools: Sequence[Mapping[str, Any]] = (), **variables: Any) -> str:
        """Render the prompt as text. Raises TemplateRefused, TemplateStopped."""
        if not self._tokenizer.chat_template:
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False))
        given = [{key: value for key, value in message.items() if value is not None} for message in chat]
        return self._render(self._named(tools), given, list(tools), variables)

    def ids(self, chat: ChatMessages, tools: Sequence[Mapping[str, Any]] = (), **variables: Any) -> list[int]:
        """Render the prompt's tokens; control tokens in texts are plain. Raises TemplateRefused, TemplateStopped."""
        if not self._tokenizer.chat_template:
            return list(self._tokenizer.apply_chat_template(chat)["input_ids"])
        from transformers.utils.chat_template_utils import mark_control_tokens

        template = self._named(tools)
        control = self._control_tokens(template)
        given = [{key: value for key, value in message.items() if value is not None} for message in chat]
        marked, said, more = (mark_control_tokens(one, control) for one in (given, list(tools), variables))
        text = self._render(template, marked, said, more)
        made = self._tokenizer(text, add_special_tokens=False, sanitize_control_tokens=True)
        return list(made["input_ids"])

    def _named(self, tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            return str(self._tokenizer.get_chat_template(tools=list(tools) or None))
        except ValueError as error:
            raise TemplateStopped(
                f"None of the chat templates of {self._model} is the default one. Choose another model."
            ) from error

    def _render(
        self, template: str, chat: ChatMessages, tools: list[Any], variables: Mapping[str, Any]
    ) -> str:
        given = {
            **self._tokenizer.special_tokens_map,
            "add_generation_prompt": False,
            **variables,
            "messages": [_with_thought(message) for message in chat],
            "tools": tools or None,
            "documents": None,
        }
        return self._asked({"template": template, "variables": given})

    def _control_tokens(self, template: str) -> re.Pattern[str]:
        """Return a pattern of control tokens: special ones, and others that the template writes or the tokenizer
        names."""
        if template not in self._control:
            named = self._tokenizer.chat_control_tokens
            written = self._asked({"template": template}) if named is None else ""
            found = []
            for token in self._tokenizer.added_tokens_decoder.values():
                text = token.content
                used = text in named if named is not None else text in written and not text.isspace()
                found += [text] if token.special or used else []
            found.sort(key=len, reverse=True)
            self._control[template] = re.compile("|".join(map(re.escape, found)) or "(?!)")
        return self._control[template]

    def _asked(self, request: Mapping[str, Any]) -> str:
        answer = _renderer.ask(request)
        if (text := answer.get("text")) is not None:
            return text
        ((kind, reason),) = answer.items()
        reason = " ".join(reason.split())[:_LONGEST_REASON].rstrip(".")
        its = later(f"The chat template of {self._model}")
        if kind == "refused":
            raise TemplateRefused(
                f"{its} does not take this chat: {reason}. Begin a new chat, or choose another model."
            )
        took = {
            "text": "wrote too much text",
            "memory": "took too much memory",
            "time": f"computed for more than {_renderer.seconds} seconds",
        }
        why = {
            "broken": later(f"cannot be read: {reason}"),
            "unsafe": later(f"was stopped, for it reaches for what is not its own: {reason}"),
            "too_much": f"was stopped, for it {took.get(reason, reason)}",
        }
        raise TemplateStopped(f"{its} {why[kind]}. Choose another model, or another file of this one.")


def _with_thought(message: dict[str, Any]) -> dict[str, Any]:
    """Put the thought of an earlier reply wherever a template may look for it."""
    thought = next((message[key] for key in THOUGHT_FIELDS if message.get(key) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


_renderer = ChildProcess(template_program.__name__, SECONDS)
renew_process = _renderer.renew


# What a model can be asked to think, and by which marks a thought is known
_SWITCHES: tuple[tuple[str, Mapping[Reasoning, Any]], ...] = (
    ("enable_thinking", {"off": False, "on": True}),
    ("thinking", {"off": False, "on": True}),
    ("reasoning_effort", {"off": "none", "low": "low", "medium": "medium", "high": "high"}),
)
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
    """Tell from one model's tokenizer and template how it thinks before it answers."""

    def __init__(self, tokenizer: Any, offered: tuple[Reasoning, ...] | None = None) -> None:
        """Read how the model thinks. `offered`: what can be asked of a model elsewhere, whose template is not here."""
        self._tokenizer = tokenizer
        self._rendering = ChatTemplate(tokenizer)
        self._offered = offered

    @property
    def choices(self) -> tuple[Reasoning, ...]:
        """Return the efforts of thinking that the model offers, from the least on; empty where none can be chosen."""
        return tuple(self._switch[1]) if self._offered is None else self._offered

    def arguments(self, chosen: Reasoning) -> dict[str, Any]:
        """Return the template's variables for the chosen effort, or the nearest that it offers."""
        name, values = self._switch
        if not chosen or not values:
            return {}
        return {name: values[nearest_effort(chosen, values)]}

    def as_written(self, text: str, tokens: Sequence[int]) -> bool:
        """Return whether the template keeps an earlier reply as it was written, with its thought and marks."""
        if not tokens or self._harmony:
            return False
        if not split_reasoning(text).answer_at:
            return True
        return self.keeps and self.text(tokens[:_TAIL]).lstrip().startswith(OPENS)

    @cached_property
    def keeps(self) -> bool:
        """Tell whether the template leaves earlier thoughts in the prompt as they were written."""
        if self._harmony or self._form != _FORMS[0]:
            return False
        said = {"content": join_reasoning(_THOUGHT, "!")}
        if self.field:
            said = {"content": "!", self.field: _THOUGHT}
        chat = [_QUESTION, {"role": "assistant"} | said, _QUESTION]
        return _THOUGHT in (self._rendered(chat) or _THOUGHT)

    @cached_property
    def field(self) -> str | None:
        """Return the field of a message in which the template looks for its thought."""
        template = self._template
        found = (f for f in THOUGHT_FIELDS if re.search(rf"\.{f}\b|['\"]{f}['\"]", template))
        return next(found, None)

    def opened(self, prompt: Sequence[int]) -> bool:
        """Tell whether a prompt ends with the mark behind which the model thinks."""
        end = self._tokenizer.decode(list(prompt[-_TAIL:]), skip_special_tokens=False).rstrip()
        opens = self._form[0]
        return end.endswith((opens, opens + _NAMED.get(opens, "").rstrip()))

    def text(self, tokens: Sequence[int], *, opened: bool = False) -> str:
        """Decode a reply, its thought between the usual marks. More tokens only add text."""
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
        """Return the special tokens that must not be left out of the text unseen, and how each is written."""
        marks = (*HARMONY, _CONSTRAIN, *_ENDS) if self._harmony else self._form
        vocabulary, added = self._tokenizer.get_vocab(), self._tokenizer.added_tokens_decoder
        found = {vocabulary[mark]: mark for mark in marks if mark in vocabulary}
        return {id: mark for id, mark in found.items() if id in added and added[id].special}

    @cached_property
    def _switch(self) -> tuple[str, Mapping[Reasoning, Any]]:
        """Return the variable by which the template switches thinking, and the values that make a difference."""
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
        with suppress(PromptError):
            return self._rendering.text(chat, add_generation_prompt=True, **more)
        return None


def _channels(pieces: Iterator[_Piece]) -> str:
    """Read a reply of gpt-oss: its channel of analysis is the thought, a message to a function is a call."""
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
