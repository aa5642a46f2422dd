"""The outline of the page for screen readers: its title is level 1, a message 2, headings inside a message below."""

from __future__ import annotations

import re

_HEADING = re.compile(r"<h([1-6])(?=[ >])")
_LOWEST = 6


def message_heading(name: str) -> str:
    """Who wrote what follows; for screen readers alone."""
    return f'<h2 class="hc-spoken">{name}</h2>'


def below_message(rendered: str) -> str:
    """Rendered Markdown whose headings begin at level 3 and skip none, whatever the model wrote."""
    last = 2

    def level(found: re.Match[str]) -> str:
        nonlocal last
        last = min(int(found[1]) + 2, last + 1, _LOWEST)
        return f'<h{found[1]} aria-level="{last}"'

    return _HEADING.sub(level, rendered)
