"""Marks runs of a reply's source in its HTML: each piece of text is wrapped by what its run says.

Markdown-it's inline tokens do not say where they stood, and a mark inside the source would change how it is read. So
the finished HTML is compared with its source. Text of the HTML stands in the source in the same order, with markup
between its pieces: each word is looked for a little beyond where the last one was found. What is not found counts to
the run that the last one belongs to. Nothing but elements around text is added: the text itself cannot change.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

Wrap = Callable[[int, str], str]
"""From the number of a run and HTML that belongs to it to the same HTML, marked."""

NEAR = 80
"""Characters beyond the last word in which the next one is looked for. Longer markup is passed over by its kind."""
_PIECE = re.compile(
    r"""(?P<math><math\b.*?</math>)
    |(?P<ours><div\ class="hc-code-head".*?</div>|<span\ class="hc-task".*?</span>)
    |<(?P<close>/?)(?P<name>[a-z0-9]+)(?:[^>"']|"[^"]*"|'[^']*')*>
    |(?P<text>[^<]+)""",
    re.S | re.X,
)
"""Formulas, what the renderer adds (a code block's head, the box of a task), other tags, text."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_ALTTEXT = re.compile(r'alttext="([^"]*)"')
_BEHIND_LINK = re.compile(r"(?:\](?:\((?:[^()\\\n]|\\.|\([^()\n]*\))*\)|\[[^\]\n]*\])?)+")
_BEHIND_HEAD = re.compile(r"[^\n]*\n[^\n]*-[^\n]*\n")
_FENCE = re.compile(r"[^\n]*\n")


class Marking:
    """The runs of one text. `ends`: where each run ends in it."""

    def __init__(self, text: str, ends: Sequence[int], wrap: Wrap) -> None:
        self._text = text
        self._ends = ends
        self._wrap = wrap

    def mark(self, drawn: str, begin: int, end: int) -> str:
        """HTML of what stands in the text from `begin` to `end`, its text wrapped."""
        source, at, out = self._text[:end], begin, []
        for piece in _PIECE.finditer(drawn):
            marked = piece[0]
            if piece["text"]:
                at, marked = self._words(html.unescape(marked), source, at)
            elif piece["math"]:
                at, behind = _formula(marked, source, at)
                marked, at = self._wrap(self._run(at), marked), behind
            elif piece["name"]:
                at = _passed(piece["close"] + piece["name"], source, at)
            out.append(marked)
        return "".join(out)

    def _words(self, text: str, source: str, at: int) -> tuple[int, str]:
        """A text node marked, and where in the source it ended."""
        out: list[str] = []
        run, pending = self._run(at), ""
        for word in _WORD.findall(text):
            found = _find(word, source, at)
            if found < 0:
                pending += word
                continue
            for offset, character in enumerate(word):
                if (now := self._run(found + offset)) != run:
                    out.append(self._wrapped(run, pending))
                    run, pending = now, ""
                pending += character
            at = found + len(word)
        out.append(self._wrapped(run, pending))
        return at, "".join(out)

    def _run(self, at: int) -> int:
        return min(bisect_right(self._ends, at), len(self._ends) - 1)

    def _wrapped(self, run: int, text: str) -> str:
        escaped = html.escape(text, quote=False)
        return self._wrap(run, escaped) if text and not text.isspace() else escaped


def _find(word: str, source: str, at: int) -> int:
    """Where a word stands in the source from `at` on; -1: not near."""
    if source.startswith(word, at):
        return at
    if word.isspace():  # a line end may have become a blank, and have marks of a quote or list behind it
        return at if source[at : at + 1].isspace() else -1
    return source.find(word, at, at + NEAR + len(word))


def _formula(drawn: str, source: str, at: int) -> tuple[int, int]:
    """Where a formula begins and ends in the source."""
    alttext = _ALTTEXT.search(drawn)
    formula = html.unescape(alttext[1]) if alttext else ""
    found = source.find(formula, at)
    return (found, found + len(formula)) if found >= 0 else (at, at)


def _passed(tag: str, source: str, at: int) -> int:
    """Behind the markup of the source that a tag stands for, where that may be long."""
    behind = None
    if tag == "pre":
        return _code_begins(source, at)
    if tag == "tbody":
        behind = _BEHIND_HEAD.match(source, at)
    elif tag == "/a":
        behind = _BEHIND_LINK.match(source, at)
    return behind.end() if behind else at


def _code_begins(source: str, at: int) -> int:
    """Behind the line that opens a block of code; of an indented one, where it is."""
    line = _FENCE.match(source, at + len(source[at:]) - len(source[at:].lstrip("\n")))
    opened = line and line[0].lstrip(" >-*+0123456789.)\t").startswith(("```", "~~~"))
    return line.end() if line and opened else at
