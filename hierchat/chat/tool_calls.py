"""Find calls of tools in a reply, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` as Qwen and Hermes models
write them, and make the grammars for them."""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hierchat.reasoning import CLOSES as THOUGHT_CLOSES
from hierchat.reasoning import OPENS as THOUGHT_OPENS


# The part of a growing text that stands: what may yet turn out to be a mark is held back.
def held_back(text: str, marks: Sequence[str]) -> int:
    """Count the characters at the end of `text` that may be the beginning of one of `marks`."""
    beginnings = (mark[:length] for mark in marks for length in range(1, len(mark)))
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


class HoldBack:
    """Passes a growing text on; `marks` are stop strings, which never come out in part."""

    def __init__(self, marks: Sequence[str] = ()) -> None:
        self._marks = marks
        self.sent = ""

    def more(self, text: str, *, done: bool) -> str:
        """Return the text since the last call that can be sent. `done`: the text has come to its end."""
        end = len(text) if done else len(text) - held_back(text, self._marks)
        new = text[len(self.sent) : end]
        self.sent += new
        return new


WHITESPACE = r"[ \n\t]{0,32}"
"""Between the parts of JSON that a reply has to be: some models would go on with blanks for ever."""
OPENS, CLOSES = "<tool_call>", "</tool_call>"
_BARE = re.compile(
    r'\s*(?:```(?:json)?\s*)?\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_BARE_BEGINS = re.compile(
    r'\s*(?:`{0,2}$|```(?:j?s?o?$|json|\s)?)?\s*(?:$|\{\s*(?:$|"n?a?m?e?$|"name"[^{]{0,200}$))'
)
"""What may yet become one: as far as a call's name, and up to the brace behind it."""

Delta = dict[str, Any]
"""Text, or a call, as OpenAI's protocol streams them."""
Call = tuple[str, str]
"""Name and arguments, which are JSON."""


class CallReader:
    """Finds calls of tools in a growing text, each once it is whole; a reply that is nothing but the call of one of
    `names` needs no marks."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.calls = 0
        self._names = names
        self._bare: bool | None = None if names else False
        """Whether the reply is a call without marks; None while that is open."""
        self._at = 0

    def read(self, text: str, *, done: bool) -> list[Delta]:
        """Return what came since the last read; `text`: all so far, `done`: to its end."""
        deltas: list[Delta] = []
        if self._bare is None:
            head = _BARE.match(text)
            named = head is not None and json.loads(head[1], strict=False) in self._names
            call = _call(text, text.index("{"))[0] if named else None
            if call:
                deltas.append(self._delta(call))
            elif not done and (named or (not head and _BARE_BEGINS.match(text))):
                return []  # it may yet become one
            self._bare = call is not None
        if not self._bare:  # after such a call only the end of a fence may come
            deltas += self._between_marks(text, done)
        return deltas

    def _between_marks(self, text: str, done: bool) -> Iterator[Delta]:
        while True:
            opens = text.find(OPENS, self._at)
            end = opens if opens >= 0 else len(text) if done else len(text) - held_back(text, (OPENS,))
            if end > self._at:
                yield {"content": text[self._at : end]}
                self._at = end
            if opens < 0:
                return
            call, behind = _call(text, opens + len(OPENS))
            closes = text.find(CLOSES, behind)
            if not done and (call is None or closes < 0):
                return  # it may yet become whole
            self._at = closes + len(CLOSES) if closes >= 0 else len(text)
            yield self._delta(call) if call else {"content": text[opens : self._at]}

    def _delta(self, call: Call) -> Delta:
        self.calls += 1
        head = {"index": self.calls - 1, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
        return {"tool_calls": [head | {"function": {"name": call[0], "arguments": call[1]}}]}


def _call(text: str, at: int) -> tuple[Call | None, int]:
    """Return the call at this place, and where it ends; None if there is no whole call."""
    begins = len(text) - len(text[at:].lstrip())
    try:
        found, ends = json.JSONDecoder(strict=False).raw_decode(text, begins)
        name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, at
    if not isinstance(name, str):
        return None, at
    told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return (name, told), ends


def forced(tools: Sequence[Mapping[str, Any]], mark: Callable[[str], str], *, several: bool) -> str:
    """Return a grammar (Lark) of a reply that only calls these tools. `mark`: spelling of the marks."""
    kinds = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema: dict[str, Any] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    schema |= {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    call = f'{mark(OPENS)} "\\n" %json {json.dumps(schema)} "\\n" {mark(CLOSES)}'
    return f'start: call ("\\n" call)*\ncall: {call}\n' if several else f"start: {call}\n"


def optional(tools: Sequence[Mapping[str, Any]], mark: Callable[[str], str]) -> str:
    """Return a grammar (Lark) of any text, in which a call of these tools fits its schema and ends the reply."""
    rules, opens, thought_ends = [], mark(OPENS), mark(THOUGHT_CLOSES)
    for number, tool in enumerate(tools):
        name = json.dumps(json.dumps(tool["function"]["name"]))
        guidance = {"x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": True}}
        schema = json.dumps(dict(tool["function"]["parameters"]) | guidance)
        rules.append(f'head_{number}[lazy]: TEXT /\\{{[ \\n]*"name"[ \\n]*:[ \\n]*/ {name}')
        arguments = r'/[ \n]*,[ \n]*"arguments"[ \n]*:[ \n]*/'
        rules.append(f"call_{number}: head_{number} {arguments} %json {schema} /[ \\n]*\\}}/")
    call = " | ".join(f"call_{number}" for number in range(len(tools)))
    reply = f"TEXT | ({call}) TAIL?"
    if not opens.startswith('"'):  # a token, which no text holds
        reply += f" | TEXT {opens} ({call}) /[ \\n]*/ {mark(CLOSES)}"
    thought = ""
    if not thought_ends.startswith('"'):
        thought = f"({mark(THOUGHT_OPENS)}? TEXT {thought_ends})? "
    return "\n".join(
        [f"start: {thought}({reply})", r"TEXT: /(.|\n)*/", r"TAIL: /[ \n]*(```|<\/tool_call>)/", *rules]
    )


_NAMED = re.compile(
    r'(?:<tool_call>\s*|```(?:json)?\s*)?\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*'
)


def before_call(text: str) -> str:
    """Return the part of a reply that stands before its first call of a tool."""
    head = _NAMED.search(text)
    return text[: head.start()].rstrip() if head else text


def first_call(text: str, names: Collection[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the first of these tools that a reply calls, and its arguments; None if it calls none."""
    for head in _NAMED.finditer(text):
        if head[1] in names:
            with suppress(ValueError, RecursionError):
                arguments, _ = json.JSONDecoder().raw_decode(text, head.end())
                if isinstance(arguments, dict):
                    return head[1], arguments
    return None
