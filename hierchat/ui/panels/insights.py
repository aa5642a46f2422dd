"""Insights: how drafting has fared from day to day, what it costs, and what is kept for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.runtime.learned import counted
from hierchat.runtime.meters import meters
from hierchat.ui.insights.machine import machine_page, meters_card
from hierchat.ui.insights.over_time import replies_page
from hierchat.ui.panels.panel import QUIET, Who

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

RANGES = {"7 days": 7, "30 days": 30, "All": None}
_RANGES = ((later("7 days"), "7 days"), (later("30 days"), "30 days"), (later("All"), "All"))
USUAL = "30 days"
ALL_MODELS = later("All models")
METER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown: a name in RANGES, and a model's key or an empty one for all."""

    period: str = USUAL
    model: str = ""


class InsightsPanel:
    """The panel. What a user chose last stays chosen until the program ends."""

    name = "insights"
    title = later("Insights")

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._chosen: dict[int, Choice] = {}

    def build(self) -> None:
        """Its components."""
        with gr.Row(elem_id="hc-insights-choice"):
            self._range = gr.Radio(
                [(_(said), name) for said, name in _RANGES], value=USUAL, label=_("Days"), show_label=False,
                container=False, elem_id="hc-range", min_width=0, scale=0,
            )  # fmt: skip
            self._model = gr.Dropdown(
                [(_(ALL_MODELS), "")], value="", label=_("Model that wrote"), show_label=False, container=False,
                elem_id="hc-writer", min_width=0, scale=0, filterable=False,
            )  # fmt: skip
        self._replies = self._still("hc-insights-replies")
        self._machine = self._still("hc-insights-machine")
        self._meters = self._still("hc-insights-meters")
        self._timer = gr.Timer(METER_SECONDS, active=False)

    @staticmethod
    def _still(elem_id: str) -> Any:
        return gr.HTML("", elem_id=elem_id, apply_default_css=False, js_on_load=None)

    def wire(self, who: Who, live: Any) -> None:
        """Range and model draw the charts anew. The meters go on while the panel is open."""

        def chosen(name: str, model: str, request: gr.Request) -> dict[Any, Any]:
            user = who(request)[1]
            self._chosen[user] = Choice(
                name if name in RANGES else USUAL, model if isinstance(model, str) else ""
            )
            return self._drawn(user)

        def tick(request: gr.Request) -> dict[Any, Any]:
            session = who(request)[0]
            if session.panel != self.name:
                return {self._timer: gr.update(active=False)}
            return {self._meters: meters_card(meters())}

        drawn = [self._range, self._model, self._replies, self._machine, live]
        for control in (self._range, self._model):
            control.input(chosen, [self._range, self._model], drawn, trigger_mode="always_last", **QUIET)
        self._timer.tick(tick, None, [self._meters, self._timer, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """All of it."""
        return [self._range, self._model, self._replies, self._machine, self._meters, self._timer]

    def show(self, user_id: int) -> dict[Any, Any]:
        """As it is now; the meters begin to tick."""
        return self._drawn(user_id) | {
            self._meters: meters_card(meters()),
            self._timer: gr.update(active=True),
        }

    def _drawn(self, user_id: int) -> dict[Any, Any]:
        store, choice = self._service.store, self._chosen.get(user_id, Choice())
        names = store.models_that_wrote(user_id)
        if choice.model not in names:  # its chats may have been deleted
            choice = replace(choice, model="")
        model, days = choice.model or None, RANGES[choice.period]
        found = store.figures_over_time(user_id, model, days)
        ever = bool(found.whole.replies or (days and store.figures_over_time(user_id, model).whole.replies))
        models = [(_(ALL_MODELS), ""), *((name, key) for key, name in names.items())]
        return {
            self._range: choice.period,
            self._model: gr.update(choices=models, value=choice.model),
            self._replies: replies_page(found, names, date.today(), days, ever),
            self._machine: machine_page(
                counted(store, user_id, model),
                self._service.costs(),
                self._service.plan(),
                store.history_size(user_id),
                self._service.index_memory(user_id),
                store.self_size(user_id, model),
                store.drafted_from_self(user_id, model),
            ),
        }
