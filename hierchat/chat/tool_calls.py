"""Find calls of tools in a reply, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` as Qwen and Hermes models
write them, and make the grammars for them."""

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hierchat.reasoning import CLOSES as THOUGHT_CLOSES
from hierchat.reasoning import OPENS as THOUGHT_OPENS


# The part of a growing text that stands: what may yet turn out to be a mark is held back.
def held_back(text: str, marks: Sequence[str]) -> int:
    """Count the characters at the end of `text` that may be the beginning of one of `marks`."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


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
_CALL = r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
_HEAD = re.compile(r"\s*" + _CALL)
_BARE = re.compile(r"\s*(?:```(?:json)?\s*)?" + _CALL)
_BARE_BEGINS = re.compile(
    r'\s*(?:`{0,2}$|```(?:j?s?o?$|json|\s)?)?\s*(?:$|\{\s*(?:$|"n?a?m?e?$|"name"[^{]{0,200}$))'
)
"""What may yet become one: as far as a call's name, and up to the brace behind it."""


Delta = dict[str, Any]
"""Text, or a part of a call, as OpenAI's protocol streams them."""


class CallReader:
    """Finds calls of tools in a growing text; a reply that is nothing but the call of one of `names` needs no marks."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.calls = 0
        self._names = names
        self._bare: bool | None = None if names else False
        """Whether the reply is a call without marks; None while that is open."""
        self._at = 0
        self._inside: str = ""  # "call": behind OPENS; "arguments": within them; "end": behind them
        self._depth = 0
        self._quoted = self._escaped = False

    def read(self, text: str, *, done: bool) -> list[Delta]:
        """Return what came since the last read; `text`: all so far, `done`: to its end."""
        deltas: list[Delta] = []
        before = None
        while before != (self._at, self._inside, self._bare):
            before = (self._at, self._inside, self._bare)
            match self._inside:
                case "" if self._bare is None:
                    deltas += self._without_marks(text, done)
                case "":
                    deltas += self._plain(text, done)
                case "call":
                    deltas += self._head(text, done)
                case "arguments":
                    deltas += self._arguments(text)
                case "end" if (closes := text.find(CLOSES, self._at)) >= 0:
                    self._at, self._inside = closes + len(CLOSES), ""
        return deltas

    def _without_marks(self, text: str, done: bool) -> list[Delta]:
        if head := _BARE.match(text):
            name = json.loads(head[1], strict=False)
            self._bare = name in self._names
            if self._bare:
                self._at, self._inside = head.end(), "arguments"
                return [self._begun(name)]
        elif done or not _BARE_BEGINS.match(text):
            self._bare = False
        return []

    def _plain(self, text: str, done: bool) -> list[Delta]:
        if self._bare:  # a brace, and the end of a fence
            self._at = len(text)
            return []
        opens = text.find(OPENS, self._at)
        end = opens if opens >= 0 else len(text) if done else len(text) - held_back(text, (OPENS,))
        end = max(end, self._at)
        plain = text[self._at : end]
        self._at = end
        if opens >= 0:
            self._at, self._inside = opens + len(OPENS), "call"
        return [{"content": plain}] if plain else []

    def _head(self, text: str, done: bool) -> list[Delta]:
        closes = text.find(CLOSES, self._at)
        if (head := _HEAD.match(text, self._at)) and (closes < 0 or head.end() <= closes):
            self._at, self._inside = head.end(), "arguments"
            return [self._begun(json.loads(head[1], strict=False))]
        if closes < 0 and not done:
            return []
        end = closes if closes >= 0 else len(text)
        written, start = text[self._at : end], self._at - len(OPENS)
        self._at, self._inside = (end + len(CLOSES) if closes >= 0 else end), ""
        call = _whole(written)
        if call is None:
            return [{"content": text[start : self._at]}]
        return [self._begun(call[0]), self._grown(call[1])]

    def _begun(self, name: str) -> Delta:
        self.calls += 1
        call = {"index": self.calls - 1, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
        return {"tool_calls": [call | {"function": {"name": name, "arguments": ""}}]}

    def _grown(self, arguments: str) -> Delta:
        return {"tool_calls": [{"index": self.calls - 1, "function": {"arguments": arguments}}]}

    def _arguments(self, text: str) -> list[Delta]:
        start = self._at
        for at in range(start, len(text)):
            sign = text[at]
            if self._quoted:
                self._escaped, self._quoted = sign == "\\" and not self._escaped, sign != '"' or self._escaped
            elif sign == '"':
                self._quoted = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._inside, self._at = "" if self._bare else "end", at + 1
                    return [self._grown(text[start : self._at])]
        self._at = len(text)
        return [self._grown(text[start:])] if text[start:] else []


def _whole(written: str) -> tuple[str, str] | None:
    """Return name and arguments of a call whose fields stand in another order, or None if it is no call."""
    try:
        found = json.loads(written)
        name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if not isinstance(name, str):
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


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
