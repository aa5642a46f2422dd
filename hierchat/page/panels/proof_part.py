"""Run the checks of `hierchat prove` from Settings, and list connections to other machines, for the owner only."""

from typing import Any

import gradio as gr

from hierchat.chat.service import ChatService
from hierchat.checks.prove import Proving
from hierchat.connections import attempts
from hierchat.language import _, error_words
from hierchat.page.event_data import PageEvent
from hierchat.page.guard import PageEvents, require_owner
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import PanelPart
from hierchat.page.sidebar import moment
from hierchat.page.templates import Macros

_POLL_SECONDS = 1.0


class ProofPart(PanelPart):
    """Part with the last result and a button for another run, which goes on in the background for all pages."""

    def __init__(self, service: ChatService) -> None:
        super().__init__(service)
        self._proving = Proving(service.data.path.parent / "proof.json")

    def build(self) -> None:
        self._connections = gr.HTML("", elem_id="hc-connections")
        self._state = gr.HTML("", elem_id="hc-proof")
        with gr.Row(elem_classes="hc-buttons"):
            self._prove = gr.Button(_("Prove it"), elem_id="hc-prove", size="sm", scale=0, min_width=0)
        self._timer = gr.Timer(_POLL_SECONDS, active=False)
        self.outputs = [self._connections, self._state, self._prove, self._timer]

    def wire(self, page: PageEvents) -> None:

        def prove(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            self._proving.start(self._service.model_status.name)
            return self.show(event.session)

        page.on(self._prove.click, prove, outputs=self.outputs)
        page.on(self._timer.tick, lambda event: self.show(event.session), outputs=self.outputs)

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the connections so far, and the last result or what is checked now; the timer runs only meanwhile."""
        if not self._service.users.is_owner(session.user):
            hidden = {self._prove: gr.update(visible="hidden"), self._timer: gr.update(active=False)}
            return hidden | {self._connections: "", self._state: ""}
        proving, doing = self._proving, self._proving.doing
        return {
            self._connections: _drawn.connections(attempts()),
            self._state: _drawn.proof(proving.last, doing, proving.trouble),
            self._prove: gr.update(visible=True, interactive=not doing),
            self._timer: gr.update(active=bool(doing) and session.screen.panel == "settings"),
        }


_drawn = Macros("settings.html", moment=moment, error_words=error_words)
