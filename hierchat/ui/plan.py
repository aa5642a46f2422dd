"""The plan as a small picture: boxes from the databases to the target, and below them what was left out."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierchat.chat.plan import PlanView


def plan_picture(view: PlanView | None) -> str:
    """The picture as HTML; empty where there is no hierarchy."""
    if view is None:
        return ""
    boxes = [_box("databases", "as much as pays", "hc-ground")] if view.retrieval else []
    boxes += [
        _box(level.name, f"blocks of {level.block}" if level.block else "verifies", "hc-level")
        for level in view.levels
    ]
    arrow = '<span class="hc-arrow" aria-hidden="true">→</span>'
    measured = "" if view.measured_ms is None else f", {view.measured_ms:.1f} measured"
    left_out = "".join(
        f"<li><b>{html.escape(one.name)}</b> {html.escape(one.reason)}</li>" for one in view.left_out
    )
    return (
        f'<div class="hc-plan" role="img" aria-label="{html.escape(_sentence(view))}">{arrow.join(boxes)}</div>'
        f'<div class="hc-quiet">{view.expected_ms:.1f} ms a token expected{measured}</div>'
        + (f'<ul class="hc-left-out hc-quiet" aria-label="Left out">{left_out}</ul>' if left_out else "")
    )


def _box(name: str, does: str, css: str) -> str:
    return f'<span class="hc-box {css}"><b>{html.escape(name)}</b><small>{html.escape(does)}</small></span>'


def _sentence(view: PlanView) -> str:
    names = [*(["databases"] if view.retrieval else []), *(level.name for level in view.levels)]
    return f"Plan: {', then '.join(names)}."
