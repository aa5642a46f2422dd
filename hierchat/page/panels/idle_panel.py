"""Draw the part of Settings for idle generation: whether the model may write meanwhile, and what there is."""

from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from hierchat.language import _, later, plural
from hierchat.page import status
from hierchat.page.charts import size
from hierchat.page.event_data import PageEvent
from hierchat.page.guard import PageEvents
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import PanelPart, still
from hierchat.page.templates import Macros

POLL_SECONDS = 1.0
AFTER = (5.0, 10.0, 30.0, 60.0)
MOST = (100_000, 500_000, 2_000_000)
_NOT_WHOLE = later("The database is in use elsewhere: bytes of it leave the file when hierchat ends.")


class IdlePart(PanelPart):
    """Switches idle generation for each user; guests, of whom nothing stays, do not have it."""

    def build(self) -> None:
        self._about = gr.HTML(_drawn.about(), elem_id="hc-learning-about")
        self._on = gr.Checkbox(
            False, label=_("Let the model write in idle time"), container=False, elem_id="hc-learning-on"
        )
        with gr.Row(elem_id="hc-learning-choice"):
            self._after = gr.Dropdown(
                _after(10.0), value=10.0, label=_("Begin after"), elem_id="hc-learning-after", filterable=False,
                min_width=0,
            )  # fmt: skip
            self._most = gr.Dropdown(
                _most(500_000), value=500_000, label=_("Write at most, for each model"), elem_id="hc-learning-most",
                filterable=False, min_width=0,
            )  # fmt: skip
        self._state = still("hc-learning-state")
        self._timer = gr.Timer(POLL_SECONDS, active=False)
        self.outputs = [self._about, self._on, self._after, self._most, self._state, self._timer]

    def wire(self, page: PageEvents) -> None:
        chosen, state = [self._on, self._after, self._most], [self._state]
        for control in chosen:
            page.on(control.input, self.choose, chosen, self.outputs, trigger_mode="always_last")
        page.on(self._timer.tick, self.tick, outputs=[self._state, self._timer])
        page.on("hc_learned_delete", partial(self.ask, _DELETING), outputs=state)
        page.on("hc_learned_keep", partial(self.ask, ""), outputs=state)
        page.on("hc_learned_deleted", partial(self.delete, page.parts.live), outputs=state)
        page.on("hc_typing", self.typing, outputs=[], queue=False)

    def choose(self, event: PageEvent, on: bool, after: float, most: int) -> dict[Any, Any]:
        user = event.user
        if not self._service.users.is_guest(user):
            before = self._service.users.idle_settings(user)
            after = after if after in AFTER else before.after_minutes
            most = most if most in MOST else before.most_tokens
            chosen = replace(before, on=on, after_minutes=after, most_tokens=most)
            self._service.idle.choose(user, chosen)
        return self.show(event.session)

    def tick(self, event: PageEvent) -> dict[Any, Any]:
        """Draw the state of idle generation; the timer rests while another view is open."""
        session = event.session
        if session.panel != "settings":
            return {self._timer: gr.update(active=False)}
        return {self._state: self._said(event.user, asked=session.removing == _DELETING)}

    def ask(self, removing: str, event: PageEvent) -> dict[Any, Any]:
        """Ask whether to delete all generated texts; with an empty `removing`, take the question back."""
        event.session.removing = removing
        return {self._state: self._said(event.user, asked=bool(removing))}

    def delete(self, live: Any, event: PageEvent) -> dict[Any, Any]:
        event.session.removing = ""
        said = _("Deleted all generated texts.")
        if not self._service.idle.delete(event.user):
            said += f" {_(_NOT_WHOLE)}"
        return {self._state: self._said(event.user), live: status.notice(said)}

    def typing(self, event: PageEvent) -> None:
        """Note that somebody types: the machine is needed. Raises Stale if the page is unknown."""
        if event.session:
            self._service.idle.touched()

    def show(self, session: Session) -> dict[Any, Any]:
        if self._service.users.is_guest(session.user):
            hidden = dict.fromkeys(self.outputs[:4], gr.update(visible="hidden"))
            return hidden | {self._state: "", self._timer: gr.update(active=False)}
        chosen = self._service.users.idle_settings(session.user)
        after, most, on = chosen.after_minutes, chosen.most_tokens, chosen.on
        return {
            self._about: gr.update(visible=True),
            self._on: on,
            self._after: gr.update(choices=_after(after), value=after, visible=on),
            self._most: gr.update(choices=_most(most), value=most, visible=on),
            self._state: self._said(session.user),
            self._timer: gr.update(active=True),
        }

    def _said(self, user_id: int, *, asked: bool = False) -> str:
        return said(self._service.idle.state(user_id), self._service.data.generated(user_id), asked)


_DELETING = "what models wrote for themselves"


def _after(chosen: float) -> list[tuple[str, float]]:
    """Return the choices of minutes, and the chosen one if it is none of them."""
    return [(_minutes(one), one) for one in sorted({*AFTER, chosen})]


def _most(chosen: int) -> list[tuple[str, int]]:
    return [(plural("{n:,} token", "{n:,} tokens", one), one) for one in sorted({*MOST, chosen})]


def _minutes(wait: float) -> str:
    return _("1 minute") if wait == 1 else _("{n:g} minutes").format(n=wait)


_drawn = Macros("idle.html", minutes=_minutes, size_words=size)
said = _drawn.said
