"""Set up markdown-it for replies: GitHub's Markdown and formulas, HTML as text, and every block with its direction."""

import html
import re
import unicodedata
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from mdit_py_plugins.gfm_autolink import gfm_autolink_plugin
from pygments.lexer import Lexer
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

from hierchat.language import _
from hierchat.page.markdown import mathematics
from hierchat.page.templates import button

# Tables as GitHub reads them, but with every cell: what a row has beyond the head's columns stays in its last one.
_SIDES = {"text-align:center": "hc-centre", "text-align:right": "hc-right"}


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
            cells = escapedSplit(getLine(state, row[0].map[0]).strip())
            beyond = cells[not cells[0] : len(cells) - (len(cells) > 1 and not cells[-1])][len(row) :]
            row[-1].content = " | ".join([row[-1].content, *(cell.strip() for cell in beyond)])
    return True


_STYLES: dict[_TokenType, str] = {
    kind: css
    for css, kinds in {
        "hc-comment": (Comment, Generic.Prompt),
        "hc-deleted": (Generic.Deleted,),
        "hc-keyword": (Comment.Preproc, Generic.Heading, Generic.Subheading, Keyword, Name.Tag),
        "hc-name": (Keyword.Type, Name.Attribute, Name.Builtin, Name.Class, Name.Decorator, Name.Function),
        "hc-number": (Keyword.Constant, Number, Literal),
        "hc-string": (Generic.Inserted, String),
    }.items()
    for kind in kinds
}
CLASSES = set(_STYLES.values())
# Beyond these a lexer's patterns may take long.
_MOST_CHARACTERS, _LONGEST_LINE = 50_000, 2_000


def coloured(code: str, language: str) -> str:
    """Return code as coloured HTML; plain if its language is unknown or it is too long. Its text is always `code`."""
    lexer = lexer_of(language)
    if (
        lexer is None
        or len(code) > _MOST_CHARACTERS
        or any(len(line) > _LONGEST_LINE for line in code.split("\n"))
    ):
        return html.escape(code)
    parts, style, run, length = [], "", "", 0
    # Not get_tokens, which strips and expands white space.
    for _at, kind, text in lexer().get_tokens_unprocessed(code):
        length += len(text)
        now = _style(kind)
        if now != style and text.strip():
            parts.append(_span(run, style))
            style, run = now, ""
        run += text
    parts.append(_span(run, style))
    return "".join(parts) if length == len(code) else html.escape(code)


def _span(text: str, style: str) -> str:
    escaped = html.escape(text)
    return f'<span class="{style}">{escaped}</span>' if style and text else escaped


@lru_cache
def lexer_of(language: str) -> type[Lexer] | None:
    with suppress(ClassNotFound):
        return find_lexer_class_by_name(language) if language else None
    return None


@lru_cache(maxsize=1024)
def _style(kind: _TokenType) -> str:
    while kind not in _STYLES and kind.parent is not None:
        kind = kind.parent
    return _STYLES.get(kind, "")


# What HTML of a reply may hold: elements, attributes and classes that are listed here, and nothing else.
# The renderer makes nothing but these; this is the second lock, should it or a plug-in of it ever fail.
_TAGS = {
    "a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
    "pre": {"tabindex"},
    "span": {"title", "role", "aria-checked", "aria-disabled", "aria-label"},
    "*": {"dir"},
}
_CELL = {"hc-centre", "hc-right"}
_CLASSES = {
    "a": {"hc-image"},
    "code": {"hc-tex"},
    "div": {"hc-code", "hc-code-head"},
    "li": {"hc-task-item"},
    "p": {"hc-definition", "hc-plain"},
    "span": {"hc-display", "hc-language", "hc-image", "hc-place", "hc-task", *CLASSES},
    "td": _CELL,
    "th": _CELL,
}
_cleaner = nh3.Cleaner(
    tags=_TAGS | mathematics.TAGS,
    attributes=_ATTRIBUTES | {tag: set(mathematics.ATTRIBUTES) for tag in mathematics.TAGS},
    allowed_classes=_CLASSES | {tag: set(mathematics.CLASSES) for tag in mathematics.TAGS},
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)
# Only the renderer can write this element: in a reply's text its brackets are escaped.
_PLACE = '<span class="hc-place"></span>'


@lru_cache  # the parser asks again and again while it looks for the end of a link
def may_be_linked(address: str) -> bool:
    """Return whether a link to `address` is allowed: else it is shown as it was written."""
    return "href=" in _cleaner.clean(f'<a href="{html.escape(address)}">')


def sanitise(drawn: str) -> str:
    """Return HTML with only the tags and attributes listed above, and a button above each block of code."""
    return _cleaner.clean(drawn).replace(_PLACE, button("hc_copy_code", _("Copy"), css="hc-copy-code"))


DEEPEST = 40
"""Quotes and lists in each other; markdown-it leaves out what is deeper."""
_LONGEST_ADDRESS = 2_000
"""Longer ones are text: each would be read to its end again and again."""
_TOO_LONG = re.compile(rf"\S{{{_LONGEST_ADDRESS}}}")
Env = MutableMapping[str, Any]
"""What goes with one drawing: `references`, and `drawn`, the costly parts by what they were drawn from."""


class _MarkdownRenderer(RendererHTML):
    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        return f'<code dir="ltr">{html.escape(tokens[idx].content)}</code>'

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        info, code = token.info.strip(), token.content
        # One that is still being written gets its colours once, at its end.
        language = info.split(maxsplit=1)[0] if info and not token.meta.get("open") else ""
        body = _kept(env, ("code", language, code), lambda: coloured(code, language))
        return (
            '<div class="hc-code" dir="ltr"><div class="hc-code-head">'
            f'<span class="hc-language">{html.escape(info)}</span><span class="hc-place"></span></div>'
            f'<pre tabindex="0"><code>{body}</code></pre></div>\n'
        )

    code_block = fence

    def math_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        tex, source, display = token.content, token.markup, bool(token.meta["display"])
        found = _kept(env, ("math", source), lambda: mathematics.drawn(tex, source, display))
        if found is None:
            return f'<code class="hc-tex" dir="ltr">{html.escape(source)}</code>'
        return f'<span class="hc-display">{found}</span>' if display else found

    def math_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        return f"<p>{self.math_inline(tokens, idx, options, env)}</p>\n"

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        address = html.escape(str(token.attrGet("src") or ""))
        label = html.escape(token.content) or address
        title = str(token.attrGet("title") or "")
        if token.meta.get("linked"):  # a link cannot hold another
            said = f"{token.attrGet('src')} {title}".strip()
            return f'<span class="hc-image"{_title(said)}>{label}</span>'
        return f'<a class="hc-image" href="{address}"{_title(title)}>{label}</a>'

    def list_item_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        token = tokens[idx]
        if "checked" not in token.meta:
            return self.renderToken(tokens, idx, options, env)
        token.attrSet("class", "hc-task-item")
        done = bool(token.meta["checked"])
        box = (
            f'<span class="hc-task" role="checkbox" aria-checked="{str(done).lower()}" aria-disabled="true"'
            f' aria-label="Task">{"[x]" if done else "[ ]"}</span> '
        )
        return self.renderToken(tokens, idx, options, env) + box

    def definition(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: Env) -> str:
        """Return the HTML of a link's definition: shown, since nothing of a reply is hidden."""
        meta = tokens[idx].meta
        address, label = html.escape(str(meta["url"])), html.escape(str(meta["label"]))
        link = f'<a href="{address}"{_title(meta["title"])}>{address}</a>'
        return f'<p class="hc-definition" dir="auto">[{label}]: {link}</p>\n'


def _title(text: object) -> str:
    return f' title="{html.escape(str(text))}"' if text else ""


def _kept(env: Env, key: tuple[str, ...], draw: Callable[[], str | None]) -> str | None:
    drawn, before = env["drawn"], env["before"]
    if key not in drawn:
        drawn[key] = before[key] if key in before else draw()
    result: str | None = drawn[key]
    return result


def _with_direction(state: StateCore) -> None:
    """Set the direction of each block's text; a list item or a quote follows its first words."""
    containers: list[Token] = []
    for token in state.tokens:
        if token.type in ("list_item_open", "blockquote_open", "table_open"):
            containers.append(token)
        elif token.type in ("list_item_close", "blockquote_close", "table_close"):
            containers.pop()
        elif token.type in ("paragraph_open", "heading_open", "td_open", "th_open"):
            token.attrSet("dir", "auto")
        elif token.type == "inline":
            children = token.children or []
            if any("dir" not in container.attrs for container in containers) and (way := _way(children)):
                for container in containers:
                    container.attrs.setdefault("dir", way)
            depth = 0
            for child in children:
                depth += child.nesting if child.type in ("link_open", "link_close") else 0
                if child.type == "image" and depth:
                    child.meta["linked"] = True


def _way(children: Sequence[Token]) -> str:
    for token in children:
        if token.type in ("text", "image"):
            for character in token.content:
                kind = unicodedata.bidirectional(character)
                if kind in ("L", "R", "AL"):
                    return "ltr" if kind == "L" else "rtl"
    return ""


def _mended(rule: Callable[[StateInline, bool], bool], state: StateInline, silent: bool) -> bool:
    """Apply markdown-it's rule for bare addresses, but keep schemes that may not be linked, in bounded time."""
    if silent or _TOO_LONG.match(state.src, state.pos):
        return False
    pending = state.pending
    if len(pending) > 1000:
        state.pending = pending[:-200]
        state.pushPending()
        state.pending = pending = pending[-200:]
    if rule(state, silent):
        return True
    state.pending = pending
    return False


def _build() -> MarkdownIt:
    options = {
        "html": False, "breaks": True, "maxNesting": DEEPEST, "tasklists": True, "inline_definitions": True,
    }  # fmt: skip
    made = MarkdownIt("js-default", options, renderer_cls=_MarkdownRenderer)
    made.use(gfm_autolink_plugin).use(mathematics.mathematics)
    made.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    for rule in made.inline.ruler.__rules__:
        if rule.name.startswith("gfm_autolink"):
            rule.fn = partial(_mended, rule.fn)
    made.disable(["entity", "html_inline", "html_block", "linkify", "replacements", "smartquotes"])
    made.core.ruler.push("direction", _with_direction)
    normal = made.normalizeLink
    made.normalizeLink = lambda url: "" if len(url) > _LONGEST_ADDRESS else normal(url)  # type: ignore[method-assign]
    made.validateLink = may_be_linked  # type: ignore[method-assign]
    return made


markdown = _build()
"""Parses Markdown, and draws it as HTML that is not yet sanitised."""
