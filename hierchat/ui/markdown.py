"""A model's Markdown made safe to show: HTML stays text, images become links. Code is left alone."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^\s{0,3}(?:[-*+]\s+|\d+[.)]\s+|>\s*)*(`{3,}|~{3,})")
_CODE_SPAN = re.compile(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)")


def shown(text: str) -> str:
    """`text` for a Markdown renderer: what is not code shows its angle brackets, and no image is fetched."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            lines.append(line)
            if opened and opened[1].startswith(fence) and not line.strip(" `~>"):
                fence = ""
        elif opened:
            fence = opened[1]
            lines.append(line)
        else:
            lines.append(_inline(line))
    return "\n".join(lines)


def _inline(line: str) -> str:
    parts: list[str] = []
    end = 0
    for span in _CODE_SPAN.finditer(line):
        parts += [_plain(line[end : span.start()]), span[0]]
        end = span.end()
    return "".join(parts) + _plain(line[end:])


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("![", "&#33;[")
