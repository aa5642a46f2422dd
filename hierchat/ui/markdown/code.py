"""Code in the colours of its language, as spans with a few classes; assets/style/markdown.css has the colours."""

from __future__ import annotations

import html
from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

_STYLES = {
    Comment: "hc-comment",
    Comment.Preproc: "hc-keyword",
    Generic.Deleted: "hc-deleted",
    Generic.Heading: "hc-keyword",
    Generic.Inserted: "hc-string",
    Generic.Prompt: "hc-comment",
    Generic.Subheading: "hc-keyword",
    Keyword: "hc-keyword",
    Keyword.Constant: "hc-number",
    Keyword.Type: "hc-name",
    Name.Attribute: "hc-name",
    Name.Builtin: "hc-name",
    Name.Class: "hc-name",
    Name.Decorator: "hc-name",
    Name.Function: "hc-name",
    Name.Tag: "hc-keyword",
    Number: "hc-number",
    String: "hc-string",
    Literal: "hc-number",
}
CLASSES = set(_STYLES.values())
# Beyond these a lexer's patterns may take long.
_MOST_CHARACTERS, _LONGEST_LINE = 50_000, 2_000


def coloured(code: str, language: str) -> str:
    """`code` as HTML; plain where the language is unknown or the code too long. Its text is `code`, always."""
    lexer = _lexer(language)
    if (
        lexer is None
        or len(code) > _MOST_CHARACTERS
        or any(len(line) > _LONGEST_LINE for line in code.split("\n"))
    ):
        return html.escape(code)
    parts, style, run, length = [], "", "", 0
    # Not get_tokens, which strips and expands white space.
    for _, kind, text in lexer().get_tokens_unprocessed(code):
        length += len(text)
        now = _style(kind)
        if now != style and text.strip():
            parts.append(_span(run, style))
            style, run = now, ""
        run += text
    parts.append(_span(run, style))
    return "".join(parts) if length == len(code) else html.escape(code)


def settled(code: str) -> int:
    """How much of a block that is still being written to colour.

    Whole lines; of long code less often, so that all its drawings together cost no more than a few of the last.
    """
    end = len(code)
    step = 1 << max(end.bit_length() - 4, 0)
    return code.rfind("\n", 0, end if end < 1024 else end - end % step) + 1


def _span(text: str, style: str) -> str:
    escaped = html.escape(text)
    return f'<span class="{style}">{escaped}</span>' if style and text else escaped


@lru_cache
def _lexer(language: str) -> type[Lexer] | None:
    try:
        return find_lexer_class_by_name(language) if language else None
    except ClassNotFound:
        return None


@lru_cache(maxsize=1024)
def _style(kind: _TokenType) -> str:
    while kind not in _STYLES and kind.parent is not None:
        kind = kind.parent
    return _STYLES.get(kind, "")
