"""Comparisons: all results that are kept, each to be opened, replayed, shared, deleted."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from hierchat.chat.comparison import ARMS, Comparison, WrongConfiguration
from hierchat.language import _, later
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.comparison_view import asked, drawn, headline, line, pair_of, verdict_line
from hierchat.page.components import still
from hierchat.page.event_data import PageEvent
from hierchat.page.sidebar import dated
from hierchat.store import StoredComparison

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session

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
        self._view = still("hc-comparisons")

        self.outputs = [self._view]

    def wire(self, page: PageEvents) -> None:
        setup = page.parts.setup

        def opened(event: PageEvent) -> dict[Any, Any]:
            return {self._view: _one(self._comparisons.get(event.user, event.id))}

        def delete(event: PageEvent) -> dict[Any, Any]:
            if event.id:
                self._comparisons.delete(event.user, event.id)
            else:
                self._comparisons.delete_all(event.user)
            return self.show(event.session)

        def choose(event: PageEvent) -> dict[Any, Any]:
            """The pair for the next comparison of this page. A wrong value leaves it as it was."""
            session, trouble = event.session, ""
            try:
                session.pair = pair_of(event.text)
            except WrongConfiguration as error:
                trouble = status.error(_("{error} The pair stays as above.").format(error=error))
            return {setup: line(session.pair) + trouble}

        page.on("hc_result", opened, outputs=self.outputs)
        page.on("hc_result_delete", delete, outputs=self.outputs)
        # Each change, one after the other: the last one counts.
        page.on("hc_setup", choose, outputs=[setup], trigger_mode="multiple", concurrency_limit=1)

    def show(self, session: Session) -> dict[Any, Any]:
        """The list, the newest first."""
        found = self._comparisons.all(session.user, LISTED + 1)
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
    about = f"{headline(result)}. {sides}. {models}, {dated(result.at)}"
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
