"""Run the panel of models: which there are, whether they fit and how fast they are; download, load, remove."""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from hierchat.chat.service import ChatService
from hierchat.chat.wording import number
from hierchat.language import _, later
from hierchat.language import number as written
from hierchat.models.cache import count, gigabytes
from hierchat.models.fetch.hub import endpoint
from hierchat.models.progress import ModelError
from hierchat.models.runnable import STEPS
from hierchat.page import chat_settings, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.components import MORE
from hierchat.page.event_data import PageEvent
from hierchat.page.guard import PageEvents, Remark
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import Panel, still
from hierchat.page.sidebar import moment
from hierchat.page.templates import Macros
from hierchat.page.views import Update
from hierchat.runtime.model_manager import READABLE, TINY, Failures, ModelManager, ModelRow
from hierchat.runtime.model_slot import SlotStatus

_FITS = {
    "yes": later("Fits"),
    "tight": later("Tight fit"),
    "full": later("Too little free memory"),
    "no": later("Does not run here"),
    "unknown": later("Memory not known yet"),
}
_USES = {"chat": later("chat"), "code": later("code"), "reasoning": later("reasoning")}
ModelAct = Callable[[str], str | None]
"""What a button does; it gets the text that the button carries, and may return HTML to show beside it."""


@dataclass(frozen=True, slots=True)
class Present:
    """State that the list of models is drawn from beside its rows."""

    best: ModelRow | None
    slot: SlotStatus
    may_change: bool
    unmeasured: bool = False
    """Whether speeds are being found out."""
    said: tuple[str, str] = ("", "")
    """A model's name, and HTML that answers its last button."""
    detailed: Collection[str] = ()
    """Names of the models whose details are drawn."""
    removing: str = ""
    """The model about which is asked,"""
    frees: int = 0
    """and the bytes that removing it frees."""

    def coming(self, row: ModelRow) -> bool:
        """Return whether this model is being loaded."""
        return self.slot.name == row.name and self.slot.phase not in ("none", "failed", "ready")


def models(rows: Sequence[ModelRow], now: Present) -> Markup:
    """Draw the table of models, the most useful ones first."""
    loaded, best = next((row for row in rows if row.loaded), None), now.best
    rows = sorted(rows, key=lambda row: _usefulness(row, best))
    tiny = bool(best and loaded and loaded.parameters and loaded.parameters < min(TINY, best.parameters or 0))
    return MODELS.table(rows, now, loaded, tiny)


def _usefulness(row: ModelRow, best: ModelRow | None) -> tuple[bool, bool, bool]:
    """Return the sort key of a model: those on disk first, then those begun and the best one; last the useless ones."""
    untouched = row.state == "absent" and not row.own and not row.download
    slow = bool(row.speed and row.speed.per_second < READABLE)
    of_no_use = untouched and (row.fit.verdict == "no" or slow)
    return row.state != "here", of_no_use, row.state == "absent" and (best is None or row.name != best.name)


MODELS = Macros(
    "models.html", FITS=_FITS, STEPS=STEPS, count=count, gigabytes=gigabytes, number=number,
    size=lambda size: gigabytes(size) if size else _("size unknown"),
    written=written, moment=moment, uses=lambda row: ", ".join(_(_USES[one]) for one in row.good_for),
)  # fmt: skip
HUB = Macros("hub.html", alone=lambda look: [one.name for one in look.choices] == [look.file])
_OTHERS = later(
    "Only the owner of this hierchat downloads, adds, ejects and removes models. You can load those that are here."
)
_SHARED = later(
    "This page is shared by a public link. Models are downloaded, added, ejected and removed only while it is not: "
    "start hierchat without --share."
)
_FORM, _HUB = ":form", ":hub"
"""Where answers stand that belong to no model of the list: below the form that adds one, above what the hub has."""
_FOR_ALL = ("hc_model_load", "hc_model_heard")
"""Buttons that are not the owner's alone."""


class ModelsPanel(Panel):
    """Lists all models, and loads the chosen one. `shared`: if a public link leads here; then nothing else works."""

    name = "models"
    title = later("Models")

    def __init__(self, service: ChatService, shared: Callable[[], bool]) -> None:
        super().__init__(service)
        self._shared = shared
        self._seen: Failures = (None, ())
        """What had gone wrong when the view was drawn last."""

    @property
    def _manager(self) -> ModelManager:
        return self._service.models

    def build(self) -> None:
        self._said = gr.HTML("", elem_id="hc-models-said")
        gr.HTML(MODELS.ways())
        self._list = still("hc-models-list")
        self._search = gr.HTML("", elem_id="hc-hub-search")  # names the hub: drawn for each reader
        self._found = still("hc-hub-found")
        gr.HTML(MODELS.adding(), elem_id="hc-models-add")
        self._added = gr.HTML("", elem_id="hc-models-added")
        gr.HTML(MODELS.how(), elem_id="hc-models-how")
        self.outputs = [self._said, self._list, self._search, self._found, self._added]

    def wire(self, page: PageEvents) -> None:
        self._parts, self._views = page.parts, page.views
        on, p = page.on, page.parts
        on(p.timer.tick, self.poll)
        on(p.model.select, self.choose, [p.model, p.controls])
        # The model that alone can show where a reply's words came from.
        on("hc_sources_load", lambda event: self.choose(event, event.text), [p.controls])
        on("hc_model_details", self.details, outputs=self.outputs, trigger_mode="multiple")
        acts: dict[str, ModelAct] = {
            "hc_model_fetch": lambda name: self._manager.download(name),
            "hc_model_stop": lambda name: self._manager.downloads.stop(name),
            "hc_model_load": lambda name: self._manager.load(name),
            "hc_model_take": lambda name: self._manager.take(name),
            "hc_model_eject": lambda name: self._manager.eject(),
            "hc_model_remove": lambda name: None,
            "hc_model_removed": self._remove,
            "hc_model_keep": lambda name: None,
            "hc_model_heard": lambda name: self._service.dismiss_model_message(),
            "hc_hub_less": lambda said: self._manager.hub.leave(look=True),
            "hc_hub_leave": lambda said: self._manager.hub.leave(),
            "hc_hub_take": lambda said: self._manager.add_and_load(),
        }
        for name, act in acts.items():
            # Each press counts: the result of one may be seen before its event has ended.
            on(name, partial(self._answer, name, act), trigger_mode="multiple")
        asking: dict[str, ModelAct] = {  # the hub, which takes seconds
            "hc_model_add": lambda text: MODELS.added(*self._manager.add(text)),
            "hc_hub_search": lambda words: self._manager.hub.search(words),
            "hc_hub_look": self._look,
        }
        for name, act in asking.items():
            on(name, partial(self._answer_later, name, act), outputs=[], slow=True, trigger_mode="multiple")

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the list, and measure memory meanwhile. Failures that were seen before are dropped."""
        self._manager.measure()
        self._manager.forget_failures(self._seen)
        hub = HUB.searching(re.sub(r"^https?://", "", endpoint()))
        return self._drawn(session) | {self._search: hub}

    def details(self, event: PageEvent) -> Update:
        """Draw the details of a model, which the page has opened: those of all would take as long as the list."""
        screen = event.session.screen
        event.session.show(models_detailed=screen.models_detailed | {event.text})
        return self._drawn(event.session)

    def choose(self, event: PageEvent, name: str) -> Update:
        """Load another model that is here, or show all. Sampling in which nothing was set follows the model."""
        now = self._service.model_status
        if name == MORE:
            present = gr.update(value=now.name or None)
            return self._views.open_panel(event.session, self.name) | {self._parts.model: present}
        sampled = self._following(name, event.controls.settings)
        # Gradio 6.31 reports one choice in a dropdown twice.
        if now.name != name or now.phase in ("none", "failed"):
            self._manager.load(name)
        event.session.model_looks += 1
        return sampled | {self._parts.timer: gr.Timer(active=True)}

    def poll(self, event: PageEvent) -> Update:
        """Draw how far the model is, and the list while it is open."""
        return self._news(event.session, [self._list, self._found])

    def _news(self, session: Session, parts: Sequence[Any]) -> Update:
        session.model_looks += 1
        if session.screen.panel != self.name:
            return {}
        drawn = self._drawn(session)
        return {part: drawn[part] for part in parts if part in drawn}

    def _following(self, name: str, values: Sequence[Any]) -> Update:
        """Return an update to the named model's sampling, unless the sampling of the one before was changed."""
        controls = self._parts.settings.sampling
        before, after = (self._service.chats.model_settings(model).sampling for model in ("", name))
        with suppress(InvalidSettings):
            if chat_settings.read(values).sampling == before:
                return dict(zip(controls, chat_settings.values_of(after), strict=True))
        return {}

    def _answer(self, name: str, act: ModelAct, event: PageEvent) -> Update:
        """Do what a button says, and draw the result."""
        self._do(name, act, event)
        return self._news(event.session, self.outputs)

    def _answer_later(self, name: str, act: ModelAct, event: PageEvent) -> None:
        """Do what a button says beside the page's other events, and draw the result when it comes."""
        if name == "hc_model_add":
            event.draw({self._added: status.waiting(_("Checking it…"))})
        self._do(name, act, event)
        with event.session.lock:
            event.draw(self._news(event.session, self.outputs))

    def _do(self, name: str, act: ModelAct, event: PageEvent) -> None:
        session, text = event.session, event.text
        session.show(removing="")
        place = _HUB if name.startswith("hc_hub_") else text.partition("|")[0]
        place = _FORM if name == "hc_model_add" else place
        if name not in _FOR_ALL and (why := self._refusal(session.user)):
            if session.screen.panel != self.name:  # pressed above or below a chat
                raise Remark(why)
            session.show(model_said=("", status.error(why)))
            return
        try:
            session.show(
                model_said=(place, act(text) or ""), removing=text if name == "hc_model_remove" else ""
            )
        except ModelError as error:
            session.show(model_said=(place, status.error(str(error))))

    def _refusal(self, user_id: int) -> str:
        """Return the sentence why this user may not change models; empty if they may."""
        if self._shared():
            return _(_SHARED)
        return "" if self._service.users.is_owner(user_id) else _(_OTHERS)

    def _drawn(self, session: Session) -> dict[Any, Any]:
        manager = self._manager
        try:
            unmeasured, rows = manager.unmeasured, manager.rows(session.user)
        except ModelError as error:  # models.yaml was edited by hand
            return dict.fromkeys(self.outputs, "") | {self._said: status.error(str(error))}
        session.models_here = frozenset(row.name for row in rows if row.state == "here")
        screen = session.screen
        removing, (place, said) = screen.removing, screen.model_said
        self._seen = manager.failures
        may_change = not self._refusal(session.user)
        drawn = models(
            rows,
            Present(
                manager.best(rows), self._service.model_status, may_change, unmeasured, said=(place, said),
                detailed=screen.models_detailed, removing=removing, frees=manager.frees(removing) if removing else 0,
            ),
        )  # fmt: skip
        elsewhere = place in (_FORM, _HUB) or any(row.name == place for row in rows)
        return {
            self._said: "" if elsewhere else said,
            self._list: drawn,
            self._found: self._searched(rows, said if place == _HUB else "") if may_change else "",
            self._added: said if place == _FORM else "",
        }

    def _searched(self, rows: Sequence[ModelRow], said: str) -> str:
        """Draw the owner's search of the hub so far. `said`: HTML that answers its last button."""
        manager = self._manager
        look = manager.hub.now.look if manager.hub.now else None
        name = manager.name_of(look.described) if look and look.described else ""
        return said + HUB.found(manager.hub.now, next((row for row in rows if row.name == name), None))

    def _remove(self, name: str) -> str:
        self._manager.remove(name)
        return status.notice(_("{name} is removed from this machine.").format(name=name))

    def _look(self, said: str) -> None:
        repo, named, file = said.partition("|")
        self._manager.hub.look(repo, file if named else None)
