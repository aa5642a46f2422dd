"""Draw a reply: what the model thought first, folded, and the answer. A call of a tool is shown as one."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate

from markupsafe import Markup

from hierchat.chat.origins import SourceRun
from hierchat.drafting.growing.kernel_arrays import MAX_MATCH
from hierchat.engine.engine import TARGET
from hierchat.language import _, plural
from hierchat.page.buttons import KEY
from hierchat.page.figures import legend, style_of
from hierchat.page.markdown.drawing import GrowingMarkdown, render, render_marked
from hierchat.page.templates import Macros
from hierchat.reasoning import split_reasoning

_CALL = re.compile(r"^[ \t]*<tool_call>\s*(\{.*?\})\s*</tool_call>[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCE = "`" * 8
_drawn = Macros("reply.html")
Draw = Callable[[str, int], str]


def drawn(text: str, seconds: float | None, key: object, draw: Draw | None = None) -> Markup:
    """Draw a reply that has ended. `seconds`: how long it thought; `key`: of its message, by which the page
    keeps open what was opened; `draw`: makes HTML of a part, which begins there in `text`."""
    parts = split_reasoning(text)
    draw = draw or (lambda part, at: render(with_calls(part)))
    thought = draw(parts.thought, parts.thought_at) if parts.thought else ""
    folded = _drawn.fold(Markup(thought), _said(seconds), key) if thought else Markup()
    return folded + Markup(draw(parts.answer, parts.answer_at))


class GrowingReply:
    """Draws a reply while it is written, frame by frame."""

    def __init__(self) -> None:
        self._thought, self._answer = GrowingMarkdown(), GrowingMarkdown()

    def render(self, text: str, seconds: float | None, key: object, *, ended: bool = False) -> Markup:
        """Return the HTML of `text`, which mostly continues the one before."""
        parts = split_reasoning(text)
        drawn = Markup()
        if parts.thought or (parts.thinking and not ended):
            inside = self._thought.render(parts.thought, ended=ended or not parts.thinking)
            label = _("Thinking…") if parts.thinking and not ended else _said(seconds)
            drawn = _drawn.fold(Markup(inside), label, key)
        return drawn + Markup(self._answer.render(with_calls(parts.answer), ended=ended))


def with_calls(text: str) -> str:
    """Return Markdown in which each call of a tool is a block of code named tool_call."""

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


_HEADING = re.compile(r"<h([1-6])(?=[ >])")
_LOWEST = 6


def below_message(rendered: str) -> Markup:
    """Return HTML whose headings begin at level 3 and skip none, whatever the model wrote."""
    last = 2

    def level(found: re.Match[str]) -> str:
        nonlocal last
        last = min(int(found[1]) + 2, last + 1, _LOWEST)
        return f'<h{found[1]} aria-level="{last}"'

    return Markup(_HEADING.sub(level, str(rendered)))  # of Markup it would escape the rest


def marked(runs: Sequence[SourceRun], text: str, seconds: float | None = None, key: object = None) -> Markup:
    """Draw a reply from its runs by source, and their legend. The words are one tab stop, with arrow keys
    from run to run (assets/page/origin.js). `seconds`, `key`: as in `drawn`."""
    told: set[int] = set()

    def wrap(number: int, piece: str) -> str:
        run = runs[number]
        facts = "" if number in told else _facts(run, first=not told)
        told.add(number)
        return f'<span class="hc-run hc-src-{style_of(run.source).slug}" data-run="{number}"{facts}>{piece}</span>'

    ends = list(accumulate(len(run.text) for run in runs))

    def draw(part: str, begin: int) -> str:
        return render_marked(part, [min(max(end - begin, 0), len(part)) for end in ends], wrap)

    inside = below_message(drawn(text, seconds, key, draw))
    return _drawn.marked(inside, legend(run.source for run in runs))


def _facts(run: SourceRun, *, first: bool) -> Markup:
    text = json.dumps({"message": str(run.origin.origin_id), "phrase": run.phrase})
    return _origin.facts(run, first, text)


_origin = Macros("origin.html", KEY=KEY, MAX_MATCH=MAX_MATCH, TARGET=TARGET)
said = _origin.said
