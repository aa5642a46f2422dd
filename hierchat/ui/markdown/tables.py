"""Tables as GitHub reads them, but with every cell: what a row has beyond the head's columns stays in its last one."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.token import Token

_SIDES = {"text-align:center": "hc-centre", "text-align:right": "hc-right"}


def tables(markdown: MarkdownIt) -> None:
    """Plug-in for markdown-it."""
    markdown.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    first = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    row: list[Token] = []
    for token in state.tokens[first:]:
        if token.type in ("th_open", "td_open"):
            side = _SIDES.get(str(token.attrs.pop("style", "")))
            token.attrs = {"class": side} if side else {}
        elif token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(token)
        elif token.type == "tr_close" and row and row[0].map:
            beyond = _cells(getLine(state, row[0].map[0]))[len(row) :]
            row[-1].content = " | ".join([row[-1].content, *(cell.strip() for cell in beyond)])
    return True


def _cells(line: str) -> list[str]:
    cells = escapedSplit(line.strip())
    return cells[not cells[0] : len(cells) - (len(cells) > 1 and not cells[-1])]
