"""The plan as a small picture: the target above, below it what drafts for it, and what was left out."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from hierchat.chat.words import model_words

if TYPE_CHECKING:
    from hierchat.chat.plan import PlanView


def plan_picture(view: PlanView | None) -> str:
    """The picture as HTML; empty where there is no hierarchy."""
    if view is None:
        return ""
    levels = [_level("earlier texts", "as many tokens ahead as save time")] if view.retrieval else []
    levels += [
        _level(
            model_words(level.name),
            f"{level.length} tokens ahead" if level.length else "writes, and checks every draft",
        )
        for level in view.levels
    ]
    measured = "" if view.measured_ms is None else f", {view.measured_ms:.1f} measured"
    left_out = "".join(
        f"<li><b>{html.escape(model_words(one.name))}</b> {html.escape(one.reason)}</li>"
        for one in view.left_out
    )
    listed = f'<ol aria-label="{html.escape(_sentence(view))}">{"".join(reversed(levels))}</ol>'
    return (
        f'<div class="hc-plan"><h3>What drafts</h3>{listed}'
        f'<p class="hc-quiet">{view.expected_ms:.1f} ms a token expected{measured}</p>'
        + (f'<h3>What does not, and why</h3><ul class="hc-quiet">{left_out}</ul>' if left_out else "")
        + "</div>"
    )


def _level(name: str, does: str) -> str:
    return f"<li><b>{html.escape(name)}</b><span>{html.escape(does)}</span></li>"


def _sentence(view: PlanView) -> str:
    names = ["earlier texts"] if view.retrieval else []
    names += [model_words(level.name) for level in view.levels]
    return f"What drafts: {', then '.join(names)}."
