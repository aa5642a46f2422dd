"""What HTML of a reply may hold: elements, attributes and classes that are listed here, and nothing else.

The renderer makes nothing but these; this is the second lock, should it or a plug-in of it ever fail.
"""

from __future__ import annotations

import html
from functools import lru_cache

import nh3

from hierchat.ui.actions import button
from hierchat.ui.markdown import code, mathematics

_TAGS = {
    "a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
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
    "span": {"hc-display", "hc-language", "hc-image", "hc-place", "hc-task", *code.CLASSES},
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
_COPY = button("hc_copy_code", "Copy", css="hc-copy-code")


@lru_cache  # the parser asks again and again while it looks for the end of a link
def may_be_linked(address: str) -> bool:
    """Whether a link to `address` gets through: else it is shown as it was written."""
    return "href=" in _cleaner.clean(f'<a href="{html.escape(address)}">')


def sanitise(drawn: str) -> str:
    """`drawn` with nothing in it but what is listed, and a button above each block of code."""
    return _cleaner.clean(drawn).replace(_PLACE, _COPY)
