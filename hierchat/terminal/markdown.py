"""Markdown in the terminal, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""What looks like HTML is text: rich would leave it out."""


class _Heading(markdown.Heading):
    """At the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(markdown.CodeBlock):
    """Without a margin, so that copied code stands as it was written."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True)


class _Drawn(markdown.Markdown):
    elements: ClassVar = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }


class Markdown:
    """Text whose parts are drawn each by itself, with a blank row between, as they are where they come one by one.
    Addresses are shown beside their links, code in the terminal's own colours."""

    def __init__(self, text: str) -> None:
        self._parts = [_part(tokens) for tokens in _blocks(_PARSER.parse(text))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self._parts):
            if number:
                yield Segment.line()
            drawn = console.render_lines(part, options.update(height=None), pad=False)
            rows = [_trimmed(row) for row in drawn]
            filled = [at for at, row in enumerate(rows) if row]
            for row in rows[filled[0] : filled[-1] + 1] if filled else []:
                yield from row
                yield Segment.line()


def _blocks(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens of each paragraph, list, table and so on."""
    blocks: list[list[Token]] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def _part(tokens: list[Token]) -> markdown.Markdown:
    drawn = _Drawn("", code_theme="ansi_dark", hyperlinks=False)
    drawn.parsed = tokens
    return drawn


def _trimmed(row: Sequence[Segment]) -> list[Segment]:
    """Without the blanks with which rich fills rows: copied text should not hold them."""
    kept = list(row)
    while kept and not kept[-1].text.strip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []


def finished(text: str) -> int:
    """How many characters at its beginning are whole parts that nothing can change that is still to come.

    The last part can grow; the one before it can, too, until the first line of the last one is whole.
    """
    lines = text.split("\n")
    begins = [block[0].map[0] for block in _blocks(_PARSER.parse(text)) if block[0].map]
    whole = [line for line in begins if line < len(lines) - 1]
    return sum(len(line) + 1 for line in lines[: whole[-1]]) if whole else 0
