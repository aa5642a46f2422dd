"""Find formulas between $, $$, \\( \\), \\[ \\] and in amsmath's environments; draw them as MathML, else as source."""

import html
import logging
import re
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from math_core import LatexToMathML

_log = logging.getLogger(__name__)

TAGS = {
    "math", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts", "mroot", "mrow",
    "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover",
}  # fmt: skip
_FLAG = re.compile(r"true|false")
_LENGTH = re.compile(r"[0-3](\.\d+)?(em|rem)?")
ATTRIBUTES = {
    "accent": _FLAG, "accentunder": _FLAG, "alttext": re.compile(r".*", re.S), "display": re.compile("block"),
    "displaystyle": _FLAG, "fence": _FLAG, "form": re.compile("prefix|infix|postfix"), "largeop": _FLAG,
    "linethickness": re.compile("0"), "lspace": _LENGTH, "mathvariant": re.compile("normal"), "maxsize": _LENGTH,
    "minsize": _LENGTH, "movablelimits": _FLAG, "rspace": _LENGTH, "scriptlevel": re.compile("[0-2]"),
    "separator": _FLAG, "stretchy": _FLAG, "symmetric": _FLAG, "width": _LENGTH,
}  # fmt: skip
"""Attribute -> what its value may be."""
_STYLES = {
    "border-bottom": "hc-line-below", "border-left": "hc-line-left", "border-right": "hc-line-right",
    "border-top": "hc-line-above", "margin-left:-0": "hc-back", "padding-left:0": "hc-join-left",
    "padding-left:1em": "hc-wide-left", "padding-right:0": "hc-join-right", "text-align:left": "hc-left",
    "text-align:right": "hc-right", "width:100%": "hc-numbered", "width:50%": "hc-half",
}  # fmt: skip
"""How a declaration in the converter's style attributes begins -> our class for it; all else in them is left out."""
_BOXES = {"box": "hc-box", "updiagonalstrike": "hc-strike", "downdiagonalstrike": "hc-strike"}
_FACES = {"b": "hc-bold", "i": "hc-italic", "code": "hc-mono"}
CLASSES = {*_STYLES.values(), *_BOXES.values(), *_FACES.values()}

_MOST_CHARACTERS = 4_000
_MOST_LINES = 50
# The converter recurses on the machine's stack: deeper than this a formula could end the process.
_DEEPEST = 50
_CHAIN = re.compile(r"(?:\\[A-Za-z]+\s*|[_^]\s*){50}")
_converter = LatexToMathML(
    fancy_error=False,
    allow_unreliable_rendering=True,
    macros={"mbox": r"\text{#1}", "substack": r"\begin{matrix}#1\end{matrix}", "hdots": r"\dots"},
)
_ENVIRONMENTS = (
    "align|alignat|aligned|array|bmatrix|Bmatrix|cases|dcases|eqnarray|equation|flalign|gather|gathered|matrix|multline"
    "|pmatrix|split|vmatrix|Vmatrix"
)
_BEGIN = re.compile(rf"\$\$|\\\[|\\begin\{{({_ENVIRONMENTS})(\*?)\}}")
_END = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}
# As in pandoc, and no word may touch the marks from outside: "$5 and $10" is money. Nor does a formula hold code.
_DOLLAR = re.compile(r"\$(?![\s$])((?:\\.|[^$\\`])*?)(?<!\s)\$(?![\w${])", re.S)
_PRICE = re.compile(r"\d[^\\^_={]*[A-Za-z]{2}[^\\^_={]*")


def mathematics(markdown: MarkdownIt) -> None:
    """Add formulas to markdown-it: tokens math_inline and math_block; content is LaTeX, markup the source."""
    markdown.inline.ruler.before("escape", "math_inline", _inline)
    interrupts = ["paragraph", "reference", "blockquote", "list"]
    markdown.block.ruler.before("fence", "math_block", _block, {"alt": interrupts})


def _inline(state: StateInline, silent: bool) -> bool:
    source, begin = state.src, state.pos
    end = min(state.posMax, begin + _MOST_CHARACTERS)
    mark = source[begin : begin + 2]
    if mark in _END:
        close = source.find(_END[mark], begin + 2, end)
        if close < 0 or not (tex := source[begin + 2 : close]).strip():
            return False
        after = close + 2
    elif source[begin] == "$" and not source[:begin][-1:].isalnum():
        found = _DOLLAR.match(source, begin, end)
        if found is None or _PRICE.fullmatch(found[1]):
            return False
        tex, after = found[1], found.end()
    else:
        return False
    if not silent:
        token = state.push("math_inline", "", 0)
        token.content, token.markup = tex, source[begin:after]
        token.meta = {"display": mark in ("$$", r"\[")}
    state.pos = after
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a formula on lines of its own. An empty line ends it, so that what follows cannot change what was read."""
    if state.is_code_block(start):
        return False
    opened = _BEGIN.match(state.src, state.bMarks[start] + state.tShift[start], state.eMarks[start])
    if opened is None:
        return False
    close = _END.get(opened[0]) or rf"\end{{{opened[1]}{opened[2]}}}"
    line, begin = start, opened.end()
    if state.src.find(close, begin, begin + _MOST_CHARACTERS) < 0:
        return False
    while (at := state.src.find(close, begin, state.eMarks[line])) < 0:
        line += 1
        if (
            line >= end
            or line - start > _MOST_LINES
            or state.isEmpty(line)
            or state.sCount[line] < state.blkIndent
        ):
            return False
        begin = state.bMarks[line] + state.tShift[line]
    rest = state.src[at + len(close) : state.eMarks[line]].strip()
    if len(rest) > 1 or rest.isalnum():  # more than a full stop: a sentence that a formula begins
        return False
    source = state.getLines(start, line + 1, state.blkIndent, False).strip()
    inside = source if opened[1] else source[2 : len(source) - len(source.rpartition(close)[2]) - 2]
    if not inside.strip():
        return False
    if not silent:
        token = state.push("math_block", "", 0)
        token.content, token.markup = inside + (rest if not opened[1] else ""), source
        token.map = [start, line + 1]
        token.block, token.meta = True, {"display": True}
    state.line = line + 1
    return True


def drawn(tex: str, source: str, display: bool) -> str | None:
    """Return the MathML of a formula, with its source for those who copy it; None if it cannot be drawn."""
    if len(tex) > _MOST_CHARACTERS or _depth(tex) > _DEEPEST or _CHAIN.search(tex):
        return None
    try:
        converted = _converter.convert_with_local_state(_usual(tex, display), displaystyle=display)
        root = ElementTree.fromstring(_NAMED.sub(lambda name: html.unescape(name[0]), converted))
    except Exception:  # not LaTeX, or beyond the converter
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the converter, which is not written in Python
            raise
        _log.warning("the converter of formulas failed")
        return None
    root.set("alttext", source)
    return _element(root)


_NAMED = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)\w+;")
_OPENING = re.compile(r"\\[{}]|([{\[]|\\left\b|\\begin\b)|([}\]]|\\right\b|\\end\b)")


def _depth(tex: str) -> int:
    depth = deepest = 0
    for found in _OPENING.finditer(tex):
        depth = max(depth + bool(found[1]) - bool(found[2]), 0)
        deepest = max(deepest, depth)
    return deepest


_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_UNDERSCORE = re.compile(r"(?<!\\)_")
_USUAL = [
    (re.compile(r"\\label\{[^{}]*\}"), ""),
    (re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*[a-z]+\s*\]"), r"\\\\"),
    (re.compile(r"\\(begin|end)\{(?:split|(?:alignat|flalign|eqnarray)\*?)\}(?:\{\d+\})?"), r"\\\1{align*}"),
    (re.compile(r"\\(begin|end)\{(align|gather|equation|multline)\}"), r"\\\1{\2*}"),
    (re.compile(r"(\\begin\{(?:aligned|gathered|split)\})\[[tbc]\]"), r"\1"),
]


def _usual(tex: str, display: bool) -> str:
    """Rewrite LaTeX in commands that the converter knows. Equations get no numbers but those that the text gives."""
    tex = _TEXT.sub(lambda text: _spoken(text[1]), tex.strip())
    for pattern, usual in _USUAL:
        tex = pattern.sub(usual, tex)
    if not display or r"\begin{" in tex:
        return tex
    if r"\tag" in tex:
        return rf"\begin{{equation*}}{tex}\end{{equation*}}"
    return rf"\begin{{gathered}}{tex}\end{{gathered}}" if r"\\" in tex else tex


def _spoken(words: str) -> str:
    """Return \\text{...} with the formulas between $ beside it, and with _ as a letter."""
    parts = words.split("$")
    if len(parts) % 2 == 0:
        parts = [words.replace("$", r"\$")]
    texts = (r"\text{" + _UNDERSCORE.sub(r"\_", part) + "}" for part in parts[::2])
    return "".join(text + formula for text, formula in zip(texts, [*parts[1::2], ""], strict=True))


def _element(element: ElementTree.Element) -> str:
    name, classes = element.tag, []
    if name == "menclose":
        classes += [_BOXES[word] for word in element.get("notation", "").split() if word in _BOXES]
        name = "mrow"
    for declaration in element.get("style", "").replace(": ", ":").split(";"):
        classes += [css for start, css in _STYLES.items() if declaration.startswith(start)]
    inside = html.escape(element.text or "")
    for child in element:
        if name == "mtext" and child.tag not in TAGS:  # <b>, <i>, <code>, <span>
            classes += [_FACES[child.tag]] if child.tag in _FACES else []
            inside += html.escape("".join(child.itertext()))
        else:
            inside += _element(child)
        inside += html.escape(child.tail or "")
    if name not in TAGS:
        return inside
    attributes = {
        key: value
        for key, value in element.attrib.items()
        if (allowed := ATTRIBUTES.get(key)) and allowed.fullmatch(value)
    }
    if classes:
        attributes["class"] = " ".join(dict.fromkeys(classes))
    said = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items())
    return f"<{name}{said}>{inside}</{name}>"
