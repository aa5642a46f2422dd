"""Comparisons: all results that are kept, each to be opened, replayed, shared, deleted."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.comparison import ARMS, Comparison
from hierchat.language import _, later
from hierchat.page.buttons import button
from hierchat.page.comparison_view import asked, date_of, drawn, headline, verdict_line
from hierchat.page.panels.panel import QUIET, SessionOf
from hierchat.store import StoredComparison

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

LISTED = 200
_EMPTY = later(
    "Nothing here yet. Turn on <b>Compare</b> at the top of a chat and send a message: it is answered twice, for "
    "example without drafts and with them. The results are kept here."
)


class ComparisonsPanel:
    """The panel."""

    name = "comparisons"
    title = later("Comparisons")

    def __init__(self, service: ChatService) -> None:
        self._comparisons = service.comparisons

    def build(self) -> None:
        """Make its components."""
        self._view = gr.HTML("", elem_id="hc-comparisons", apply_default_css=False, js_on_load=None)

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Join nothing: the buttons are in generated HTML, and `listen` joins them."""

    def listen(self, bus: Any, session_of: SessionOf, live: Any) -> None:
        """Join what the page's script reports; `live`: where trouble is said."""

        def opened(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            user = session_of(request)[1]
            return {self._view: _one(self._comparisons.get(user, int(event._data["id"])))}

        def delete(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            user = session_of(request)[1]
            if one := int(event._data["id"]):
                self._comparisons.delete(user, one)
            else:
                self._comparisons.delete_all(user)
            return self.show(user)

        bus.hc_result(opened, None, [self._view, live], **QUIET)
        bus.hc_result_delete(delete, None, [self._view, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` may change."""
        return [self._view]

    def show(self, user_id: int) -> dict[Any, Any]:
        """The list, the newest first."""
        found = self._comparisons.all(user_id, LISTED + 1)
        return {self._view: _list(found[:LISTED], more=len(found) > LISTED)}


def _read(stored: StoredComparison) -> Comparison:
    return Comparison.from_json(stored.id, stored.question, stored.created_at, stored.result)


def _list(found: list[StoredComparison], *, more: bool) -> str:
    if not found:
        return f'<p class="hc-quiet">{_(_EMPTY)}</p>'
    rows = "".join(_row(_read(one)) for one in found)
    newest = _("These are the {n} newest. Older ones are kept, too.").format(n=LISTED)
    older = f'<p class="hc-quiet">{newest}</p>' if more else ""
    clear = button("hc_result_delete", _("Delete all…"), css="hc-danger")
    return f'<ul class="hc-rows hc-results">{rows}</ul>{older}<div class="hc-result-tools">{clear}</div>'


def _row(result: Comparison) -> str:
    question = " ".join(result.question.split()) or _("(no text)")
    sides = _(" against ").join(result.sides[arm].name for arm in ARMS)
    models = _(" and ").join(dict.fromkeys(result.sides[arm].model for arm in ARMS))
    delete = _("Delete: {question}").format(question=question)
    about = f"{headline(result)}. {sides}. {models}, {date_of(result)}"
    return (
        f"<li><div>{button('hc_result', question, id=result.id, css='hc-question', dir='auto')}"
        f'<p class="hc-quiet">{html.escape(about)}</p></div>'
        f"{button('hc_result_delete', _('Delete…'), id=result.id, aria_label=delete)}</li>"
    )


def _one(stored: StoredComparison) -> str:
    result = _read(stored)
    delete = button("hc_result_delete", _("Delete…"), id=result.id, css="hc-plain")
    return (
        f'<div class="hc-one">{button("hc_panel", _("← All comparisons"), text=ComparisonsPanel.name)}'
        f"{asked(result.question)}{verdict_line(result.verdict)}{drawn(result, delete)}</div>"
    )
