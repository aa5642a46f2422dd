"""Markdown in the terminal, part by part."""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich import markdown

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""What looks like HTML is text: rich would leave it out."""


class Markdown(markdown.Markdown):
    """One part of a reply. Addresses are shown beside their links, code in the terminal's own colours."""

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


def finished(text: str) -> int:
    """How many characters at its beginning are whole parts that nothing can change that is still to come.

    The last part can grow; the one before it can, too, until the first line of the last one is whole.
    """
    lines = text.split("\n")
    blocks = [one.map[0] for one in _PARSER.parse(text) if one.level == 0 and one.map and one.nesting >= 0]
    whole = [line for line in blocks if line < len(lines) - 1]
    return sum(len(line) + 1 for line in lines[: whole[-1]]) if whole else 0
