"""A reply as it is drawn: what the model thought first, folded, and the answer. A call of a tool is shown as one."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

from hierchat.language import _, plural
from hierchat.thoughts import parted
from hierchat.ui.markdown import Growing, render

_CALL = re.compile(r"^[ \t]*<tool_call>\s*(\{.*?\})\s*</tool_call>[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCE = "`" * 8
Draw = Callable[[str, int], str]


def drawn(text: str, seconds: float | None, key: object, draw: Draw | None = None) -> str:
    """The inside of a reply that has ended. `seconds`: how long it thought, where that was measured; `key`: of its
    message, by which the page keeps open what was opened; `draw`: makes HTML of a part, which begins there in `text`.
    """
    parts = parted(text)
    draw = draw or (lambda part, at: render(with_calls(part)))
    thought = draw(parts.thought, parts.thought_at) if parts.thought else ""
    return (fold(thought, _said(seconds), key) if thought else "") + draw(parts.answer, parts.answer_at)


class GrowingReply:
    """The same while it is written, frame by frame."""

    def __init__(self) -> None:
        self._thought, self._answer = Growing(), Growing()

    def render(self, text: str, seconds: float | None, key: object, *, ended: bool = False) -> str:
        """HTML of `text`, which is the one before and more; any other begins anew."""
        parts = parted(text)
        drawn = ""
        if parts.thought or (parts.thinking and not ended):
            inside = self._thought.render(parts.thought, ended=ended or not parts.thinking)
            drawn = fold(inside, _("Thinking…") if parts.thinking and not ended else _said(seconds), key)
        return drawn + self._answer.render(with_calls(parts.answer), ended=ended)


def with_calls(text: str) -> str:
    """Markdown in which each call of a tool is a block of code that says so."""

    def block(found: re.Match[str]) -> str:
        try:
            call = json.dumps(json.loads(found[1]), ensure_ascii=False, indent=2)
        except ValueError:
            call = found[1]
        return f"\n{_FENCE}tool_call\n{call}\n{_FENCE}\n"

    return _CALL.sub(block, text) if "<tool_call>" in text else text


def _said(seconds: float | None) -> str:
    if seconds is None:
        return _("Thoughts")
    if seconds < 60:
        return plural("Thought for {n} second", "Thought for {n} seconds", max(1, round(seconds)))
    return plural("Thought for {n} minute", "Thought for {n} minutes", round(seconds / 60))


def fold(inside: str, label: str, key: object) -> str:
    """Closed at first; assets/page/thought.js keeps it open while it is drawn anew."""
    return (
        f'<details class="hc-thought" data-thought="{html.escape(str(key))}"><summary>{label}</summary>'
        f"<div>{inside}</div></details>"
    )
