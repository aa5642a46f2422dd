"""Models: what there is and what of it is here, whether it fits, how fast it is; fetching, loading, removing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.models.fetch.hub import endpoint
from hierchat.models.progress import ModelError
from hierchat.page import status
from hierchat.page.event_data import Foreign
from hierchat.page.page_sessions import Session
from hierchat.page.panels import hub_view, models_view
from hierchat.page.panels.models_view import added, adding, adding_how
from hierchat.page.panels.panel import SessionOf

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.runtime.model_manager import Failures, ModelRow

_OTHERS = later(
    "Only the owner of this hierchat downloads, adds, ejects and removes models. You can load those that are here."
)
_SHARED = later(
    "This page is shared by a public link. Models are downloaded, added, ejected and removed only while it is not: "
    "start hierchat without --share."
)
Act = Callable[[str, Session], str | None]
"""Does what a button asks of the model of that name; returns the HTML that answers it, if any."""
_FORM, _HUB = ":form", ":hub"
"""Where answers stand that belong to no model of the list: below the form that adds one, above what the hub has."""
_FOR_ALL = ("hc_model_load", "hc_model_cancel", "hc_model_heard")
"""Buttons that are not the owner's alone."""


class ModelsPanel:
    """The panel. `shared`: whether the page is open to others by a public link: then nothing can be changed in it but
    which model answers."""

    name = "models"
    title = later("Models")

    def __init__(self, service: ChatService, shared: Callable[[], bool]) -> None:
        self._service = service
        self._shared = shared
        self._seen: Failures = (None, ())
        """What had gone wrong when the view was drawn last."""

    def build(self) -> None:
        """Make its components."""
        self._said = gr.HTML("", elem_id="hc-models-said")
        gr.HTML(models_view.narrowing(), elem_id="hc-models-narrowing")
        self._list = gr.HTML("", elem_id="hc-models-list", apply_default_css=False, js_on_load=None)
        gr.HTML(hub_view.searching(endpoint()), elem_id="hc-hub-search")
        self._found = gr.HTML("", elem_id="hc-hub-found", apply_default_css=False, js_on_load=None)
        gr.HTML(adding(), elem_id="hc-models-add")
        self._added = gr.HTML("", elem_id="hc-models-added")
        gr.HTML(adding_how(), elem_id="hc-models-how")

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Keep how to find the page that asks; `acts` has the handlers of the buttons."""
        self._session_of = session_of

    @property
    def acts(self) -> dict[str, Callable[..., Any]]:
        """Return the handlers by the action that a button carries."""
        acts: dict[str, Act] = {
            "hc_model_fetch": lambda name, session: self._service.models.download(name),
            "hc_model_stop": lambda name, session: self._service.models.stop(name),
            "hc_model_load": lambda name, session: self._service.models.load(name),
            "hc_model_eject": lambda name, session: self._service.models.eject(),
            "hc_model_remove": self._ask,
            "hc_model_removed": self._remove,
            "hc_model_keep": lambda name, session: None,
            "hc_model_cancel": lambda name, session: self._service.models.cancel(),
            "hc_model_heard": lambda name, session: self._service.dismiss_model_message(),
            "hc_model_add": lambda text, session: added(*self._service.models.add(text)),
            "hc_hub_search": lambda words, session: self._service.models.hub.search(words),
            "hc_hub_look": self._look,
            "hc_hub_less": lambda said, session: self._service.models.hub.leave_look(),
            "hc_hub_leave": lambda said, session: self._service.models.hub.leave(),
            "hc_hub_take": self._take,
            "hc_model_draft": lambda names, session: self._let_draft(names, wanted=True),
            "hc_model_undraft": lambda names, session: self._let_draft(names, wanted=False),
        }
        answering: dict[str, Callable[..., Any]] = {
            name: self._answering(name, act) for name, act in acts.items()
        }
        return {**answering, "hc_model_add": self._patiently(answering["hc_model_add"])}

    @property
    def outputs(self) -> list[Any]:
        """Return the components that it draws."""
        return [self._said, self._list, self._found, self._added]

    def show(self, user_id: int) -> dict[Any, Any]:
        """The list as it is now; how fast memory is, is measured meanwhile. What went wrong before, and was seen, is
        past."""
        self._service.models.measure()
        self._service.models.forget_failures(self._seen)
        return self._drawn(user_id, Session())

    def tick(self, request: gr.Request) -> dict[Any, Any]:
        """Once a second while anything goes on."""
        session, user = self._session_of(request)
        if session.panel != self.name:
            return {self._list: gr.skip()}
        drawn = self._drawn(user, session)
        return {part: drawn[part] for part in (self._list, self._found)}

    def _answering(self, name: str, act: Act) -> Callable[..., dict[Any, Any]]:
        def answer(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            session, user = self._session_of(request)
            text, session.removing = str(event._data["text"]), ""
            place = (
                _FORM
                if name == "hc_model_add"
                else _HUB
                if name.startswith("hc_hub_")
                else text.partition("|")[0]
            )
            if name not in _FOR_ALL and (why := self._refusal(user)):
                session.model_said = ("", status.error(why))
                return self._drawn(user, session)
            try:
                session.model_said = (place, act(text, session) or "")
            except ModelError as error:
                session.model_said = (place, status.error(str(error)))
            if session.panel != self.name:  # pressed above a chat
                return {self._list: gr.skip()}
            return self._drawn(user, session)

        return answer

    def _patiently(self, answer: Callable[..., dict[Any, Any]]) -> Callable[..., Iterator[dict[Any, Any]]]:
        """Answer at once that the hub is asked, which takes seconds, and then with what came of it."""

        def answers(event: gr.EventData, request: gr.Request) -> Iterator[dict[Any, Any]]:
            yield {self._added: status.waiting(_("Looking at it…"))}
            yield answer(event, request)

        return answers

    def _refusal(self, user_id: int) -> str:
        """Why this user changes nothing here; empty where they may."""
        if self._shared():
            return _(_SHARED)
        return "" if self._service.users.is_owner(user_id) else _(_OTHERS)

    def _drawn(self, user_id: int, session: Session) -> dict[Any, Any]:
        manager = self._service.models
        try:
            unmeasured, rows = manager.unmeasured, manager.rows(user_id)
        except ModelError as error:  # models.yaml was edited by hand
            return {self._said: status.error(str(error)), self._list: "", self._found: "", self._added: ""}
        removing, (place, said) = session.removing, session.model_said
        self._seen = manager.failures
        drawn = models_view.models(
            rows,
            manager.best(rows),
            self._service.model_status,
            removing,
            manager.frees(removing) if removing else 0,
            may_change := not self._refusal(user_id),
            said=(place, said),
            unmeasured=unmeasured,
        )
        elsewhere = place in (_FORM, _HUB) or any(row.name == place for row in rows)
        return {
            self._said: "" if elsewhere else said,
            self._list: drawn,
            self._found: self._searched(rows, said if place == _HUB else "") if may_change else "",
            self._added: said if place == _FORM else "",
        }

    def _searched(self, rows: Sequence[ModelRow], said: str) -> str:
        """The owner's search, as far as it is. `said`: HTML that answers its last button."""
        manager = self._service.models
        look = manager.hub.now.look if manager.hub.now else None
        name = manager.name_of(look.described) if look and look.described else ""
        return said + hub_view.found(manager.hub.now, next((row for row in rows if row.name == name), None))

    def _ask(self, name: str, session: Session) -> None:
        session.removing = name

    def _remove(self, name: str, session: Session) -> str:
        self._service.models.remove(name)
        return status.notice(_("{name} is removed from this machine.").format(name=name))

    def _look(self, said: str, session: Session) -> None:
        repo, named, file = said.partition("|")
        self._service.models.hub.look(repo, file if named else None)

    def _take(self, said: str, session: Session) -> None:
        self._service.models.add_and_load()

    def _let_draft(self, names: str, *, wanted: bool) -> str:
        name, between, draft = names.partition("|")
        if not between:
            raise Foreign
        self._service.models.let_draft(name, draft, wanted)
        if wanted:
            said = _("{draft} drafts for {name} from the next time that {name} is loaded.")
        else:
            said = _("{draft} no longer drafts for {name} from the next time that {name} is loaded.")
        return status.notice(said.format(draft=draft, name=name))
