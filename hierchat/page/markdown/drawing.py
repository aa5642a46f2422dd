"""Draw a reply's text as HTML, block by block, at once or while it grows, and mark its words by source."""

import html
import logging
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from markdown_it.token import Token
from markupsafe import Markup, escape

from hierchat.language import current
from hierchat.page.markdown import parser
from hierchat.page.markdown.parser import DEEPEST, Env, markdown, sanitise

# Marks runs of a reply's source in its HTML: each piece of text is wrapped by what its run says.
# Markdown-it's inline tokens do not say where they stood, and a mark inside the source would change how it
# is read. So the finished HTML is compared with its source. Text of the HTML stands in the source in the
# same order, with markup between its pieces: each word is looked for a little beyond where the last one was
# found. What is not found counts to the run that the last one belongs to. Nothing but elements around text
# is added: the text itself cannot change.
Wrap = Callable[[int, str], str]
"""From the number of a run and HTML that belongs to it to the same HTML, marked."""

NEAR = 80
"""Characters beyond the last word in which the next one is looked for. Longer markup is passed over by its kind."""
_MARK_PIECE = re.compile(
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
    """Marks the runs of one text in its HTML. `ends`: the position in the text where each run ends."""

    def __init__(self, text: str, ends: Sequence[int], wrap: Wrap) -> None:
        self._text = text
        self._ends = ends
        self._wrap = wrap

    def mark(self, drawn: str, begin: int, end: int) -> str:
        """Return the HTML drawn of the text from `begin` to `end` with its words wrapped by run."""
        source, at, out = self._text[:end], begin, []
        for piece in _MARK_PIECE.finditer(drawn):
            marked = piece[0]
            if piece["text"]:
                at, marked = self._words(html.unescape(marked), source, at)
            elif piece["math"]:
                alttext = _ALTTEXT.search(marked)
                formula = html.unescape(alttext[1]) if alttext else ""
                found = source.find(formula, at)
                at, behind = (found, found + len(formula)) if found >= 0 else (at, at)
                marked, at = self._wrap(self._run(at), marked), behind
            elif piece["name"]:
                at = _passed(piece["close"] + piece["name"], source, at)
            out.append(marked)
        return "".join(out)

    def _words(self, text: str, source: str, at: int) -> tuple[int, str]:
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
    if source.startswith(word, at):
        return at
    if word.isspace():  # a line end may have become a blank, and have marks of a quote or list behind it
        return at if source[at : at + 1].isspace() else -1
    return source.find(word, at, at + NEAR + len(word))


def _passed(tag: str, source: str, at: int) -> int:
    """Return the position behind the markup of the source that a tag stands for, where that may be long."""
    behind = None
    if tag == "pre":  # behind the line that opens a block of code; an indented one has none
        line = _FENCE.match(source, at + len(source[at:]) - len(source[at:].lstrip("\n")))
        opened = line and line[0].lstrip(" >-*+0123456789.)\t").startswith(("```", "~~~"))
        behind = line if opened else None
    elif tag == "tbody":
        behind = _BEHIND_HEAD.match(source, at)
    elif tag == "/a":
        behind = _BEHIND_LINK.match(source, at)
    return behind.end() if behind else at


_log = logging.getLogger(__name__)
# Text that is larger, or that keeps the parser looking for the ends of links, would take it more than a second.
_MOST = {"": 100_000, "\n": 10_000, "[": 4_000, "](": 1_000}
_KEPT = 256
"""Drawn texts that are kept, for chats that are opened again."""
_PIECE, _IN_A_LINE = 8_000, 80
"""Characters of a piece of long text, and of a line of it on the screen, about."""
_UNSENDABLE = re.compile("[\0\ud800-\udfff]")


def render(text: str) -> str:
    """Return the HTML of `text`, with a button above each block of code that copies it."""
    return _rendered(_normal(text), current())


@lru_cache(_KEPT)
def _rendered(text: str, language: str) -> str:
    return _join(_blocks(text, _env()))


def empty_caches() -> None:
    """Forget what was drawn of any text."""
    for cache in (parser.may_be_linked, parser.lexer_of, _rendered):
        cache.cache_clear()


def render_marked(text: str, ends: Sequence[int], wrap: Wrap) -> str:
    """Return the HTML of `render`, its text in pieces that `wrap` marks. `ends`: where each run of `text` ends."""
    if "\r" in text:
        ends = [len(_normal(text[:end])) for end in ends]
    text = _normal(text)
    marking = Marking(text, ends, wrap)
    blocks = _blocks(text, _env())
    lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    edges = pairwise([*(lines[block.line] for block in blocks), len(text)])
    return "".join(
        marking.mark(block.html, begin, end) for block, (begin, end) in zip(blocks, edges, strict=True)
    )


class GrowingMarkdown:
    """Draws a growing text: as `render`, without colours of open code, and in a fifth of the time at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        """When to draw again."""
        self._begin()

    def _begin(self) -> None:
        self._text = self._html = ""
        """The last text and what it became."""
        self._ended = False
        self._finished, self._drawn = 0, ""
        """Characters at the beginning that no further text can change, and their HTML."""
        self._references: dict[str, Any] = {}
        self._parts: dict[tuple[str, ...], str | None] = {}

    def render(self, text: str, ended: bool = False) -> str:
        """Return the HTML of `text`, which mostly continues the one before. `ended`: nothing more will come."""
        text = _normal(text)
        if text == self._text and ended == self._ended:
            return self._html
        began = self._clock()
        if not text.startswith(self._text):
            self._begin()
        elif not ended and began < self._next:
            return self._html
        self._text, self._ended = text, ended
        rest = text[self._finished :]
        env = _env(self._references, self._parts)
        blocks = _blocks(rest, env, growing=not ended)
        if env["references"] == self._references:
            result = self._drawn + _join(blocks)
        else:  # an address that blocks before may name
            env = _env(before=self._parts)
            result = _join(_blocks(text, env, growing=not ended))
        self._parts = env["drawn"]
        self._finish(rest, blocks)
        self._html = result
        now = self._clock()
        self._next = now + 4 * (now - began)
        return result

    def _finish(self, rest: str, blocks: "Sequence[_Block]") -> None:
        lines = rest.split("\n")
        ends = [b.line for b in blocks if 0 < b.line < len(lines) - 1 and not lines[b.line - 1].strip()]
        if not ends:
            return
        last = ends[-1]
        piece = "\n".join(lines[:last]) + "\n"
        env = _env(self._references, self._parts)
        drawn = _join(_blocks(piece, env))
        self._finished += len(piece)
        if env["references"] == self._references:
            self._drawn += drawn
        else:
            self._references = env["references"]
            whole = self._text[: self._finished]
            self._drawn = _join(_blocks(whole, _env(before=self._parts)))


class _Block(NamedTuple):
    """Block of the top level: the line on which it begins, and its HTML."""

    line: int
    html: str


def _join(blocks: Sequence[_Block]) -> str:
    return "".join(block.html for block in blocks)


def _env(
    references: dict[str, Any] | None = None, before: dict[tuple[str, ...], str | None] | None = None
) -> Env:
    return {"references": dict(references or {}), "drawn": {}, "before": before or {}}


def _normal(text: str) -> str:
    return _UNSENDABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))


def _blocks(text: str, env: Env, growing: bool = False) -> list[_Block]:
    if any(text.count(part) > most for part, most in _MOST.items()):
        return [_Block(0, _plain(text))]
    try:
        tokens = markdown.parse(text, env)
    except Exception as error:
        return [_Block(0, _failed(text, error))]
    groups: list[list[Token]] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            groups.append([])
        groups[-1].append(token)
    if not groups:
        return []
    lines = text.split("\n")
    if growing:
        _mark_open(tokens, len(lines))
    starts = [group[0].map[0] if group[0].map else 0 for group in groups]
    return [
        _Block(start, _drawn(group, lines[start:end], env))
        for group, start, end in zip(groups, starts, [*starts[1:], len(lines)], strict=True)
    ]


def _drawn(tokens: Sequence[Token], lines: Sequence[str], env: Env) -> str:
    if any(token.level >= DEEPEST - 1 for token in tokens):
        return _plain("\n".join(lines))
    try:
        return sanitise(str(markdown.renderer.render(tokens, markdown.options, env)))
    except Exception as error:
        return _failed("\n".join(lines), error)


def _mark_open(tokens: Sequence[Token], lines: int) -> None:
    for token in reversed(tokens):
        if token.type == "fence" and token.map:
            written = token.content.count("\n") + (not token.content.endswith("\n") and bool(token.content))
            token.meta["open"] = token.map[1] >= lines - 1 and written >= token.map[1] - token.map[0] - 1
            return


def _failed(text: str, error: Exception) -> str:
    _log.warning("a reply is shown as plain text: %s", type(error).__name__)
    return _plain(text)


def _plain(text: str) -> str:
    return f'<p class="hc-plain" dir="auto">{in_pieces(text)}</p>\n'


def in_pieces(text: str) -> Markup:
    """Escape a text, a long one in pieces of which a browser lays out only the visible ones."""
    if len(text) <= 2 * _PIECE:
        return escape(text)
    pieces, begin = [], 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or text.rfind(" ", begin, end) + 1 or end
        piece = text[begin:end]
        height = piece.count("\n") + len(piece) // _IN_A_LINE  # in lines, until it was on the screen
        pieces.append(f'<span class="hc-piece" style="--hc-lines:{height}">{html.escape(piece)}</span>')
        begin = end
    return Markup("".join(pieces))
