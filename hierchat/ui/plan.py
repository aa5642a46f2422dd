"""The plan as a small picture: the target above, below it what drafts for it, and what was left out."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from hierchat.chat.words import model_words
from hierchat.language import _

if TYPE_CHECKING:
    from hierchat.chat.plan import PlanView


def plan_picture(view: PlanView | None) -> str:
    """The picture as HTML; empty where there is no hierarchy."""
    if view is None:
        return ""
    levels = [_level(_("earlier texts"), _("as many tokens ahead as save time"))] if view.retrieval else []
    levels += [
        _level(
            model_words(level.name),
            _("{length} tokens ahead").format(length=level.length)
            if level.length
            else _("writes, and checks every draft"),
        )
        for level in view.levels
    ]
    measured = "" if view.measured_ms is None else _(", {ms:.1f} measured").format(ms=view.measured_ms)
    expected = _("{ms:.1f} ms a token expected").format(ms=view.expected_ms)
    left_out = "".join(
        f"<li><b>{html.escape(model_words(one.name))}</b> {html.escape(one.reason)}</li>"
        for one in view.left_out
    )
    listed = f'<ol aria-label="{html.escape(_sentence(view))}">{"".join(reversed(levels))}</ol>'
    return (
        f'<div class="hc-plan"><h3>{_("What drafts")}</h3>{listed}'
        f'<p class="hc-quiet">{expected}{measured}</p>'
        + (f'<h3>{_("What does not, and why")}</h3><ul class="hc-quiet">{left_out}</ul>' if left_out else "")
        + "</div>"
    )


def _level(name: str, does: str) -> str:
    return f"<li><b>{html.escape(name)}</b><span>{html.escape(does)}</span></li>"


def _sentence(view: PlanView) -> str:
    names = [_("earlier texts")] if view.retrieval else []
    names += [model_words(level.name) for level in view.levels]
    return _("What drafts: {names}.").format(names=_(", then ").join(names))
