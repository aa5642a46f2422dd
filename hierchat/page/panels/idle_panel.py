"""A part of Settings: whether the model may write for itself while nobody needs the machine, and what there is."""

from __future__ import annotations

import html
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, error_words, later, plural
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.charts import size
from hierchat.page.panels.panel import PanelPart, still
from hierchat.store import GeneratedSize

if TYPE_CHECKING:
    from hierchat.chat.idle_generation import IdleState
    from hierchat.page.event_data import PageEvent
    from hierchat.page.guard import PageEvents
    from hierchat.page.page_sessions import Session

POLL_SECONDS = 1.0
AFTER = (5.0, 10.0, 30.0, 60.0)
MOST = (100_000, 500_000, 2_000_000)
_NOT_WHOLE = later("The database is in use elsewhere: bytes of it leave the file when hierchat ends.")


def about() -> str:
    """Say what is written, when, at what cost, where, and how to stop it: before it is allowed."""
    facts = (
        (_("What"), _(
            "Answers to prompts that come with hierchat, and to questions like those that open your chats. They are "
            "used for your replies alone, and stand in no chat, search or export; a backup holds them."
        )),
        (_("When"), _(
            "When nobody has asked for a reply for as long as you choose below, no other program needs the processor, "
            "and the machine runs on mains power. It stops when you type."
        )),
        (_("Power"), _(
            "As much as while a reply is written, for as long as it goes on: the processor at full load, and the fan "
            "with it."
        )),
        (_("Where"), _(
            "In the database with your chats, about 8 bytes for each token. Nothing leaves this machine."
        )),
        (_("Stop"), _(
            "Switch it off here: what it wrote stays until you delete it. Who deletes a chat deletes what was made "
            "from its questions, too; “Forget everything” deletes all of it."
        )),
    )  # fmt: skip
    rows = status.facts(facts, "hc-facts hc-learning")
    quiet = _(
        "The model can write texts for itself. Replies that say similar things then come faster; no word of a reply "
        "changes. It is off until you allow it."
    )
    title = _("Idle generation")
    folded = f"<details><summary>{_('Details')}</summary>{rows}</details>"
    return f'<h2>{title}</h2><p class="hc-quiet">{quiet}</p>{folded}'


class IdlePart(PanelPart):
    """Switch idle generation for each user; guests, of whom nothing stays, have it not."""

    def build(self) -> None:
        self._about = gr.HTML(about(), elem_id="hc-learning-about")
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
        """Keep what the user chose."""
        user = event.user
        if not self._service.users.is_guest(user):
            before = self._service.users.idle_settings(user)
            after = after if after in AFTER else before.after_minutes
            most = most if most in MOST else before.most_tokens
            chosen = replace(before, on=on, after_minutes=after, most_tokens=most)
            self._service.idle.choose(user, chosen)
        return self.show(event.session)

    def tick(self, event: PageEvent) -> dict[Any, Any]:
        """Draw what is being done; the timer rests while another view is open."""
        session = event.session
        if session.panel != "settings":
            return {self._timer: gr.update(active=False)}
        return {self._state: self._said(event.user, asked=session.removing == _DELETING)}

    def ask(self, removing: str, event: PageEvent) -> dict[Any, Any]:
        """Ask whether all that was written is to be deleted; with an empty `removing` it is not."""
        event.session.removing = removing
        return {self._state: self._said(event.user, asked=bool(removing))}

    def delete(self, live: Any, event: PageEvent) -> dict[Any, Any]:
        """Delete all that was written."""
        event.session.removing = ""
        said = _("Deleted all generated texts.")
        if not self._service.idle.delete(event.user):
            said += f" {_(_NOT_WHOLE)}"
        return {self._state: self._said(event.user), live: status.notice(said)}

    def typing(self, event: PageEvent) -> None:
        """Somebody types: the machine is needed. Raises Stale where the page is unknown."""
        if event.session:
            self._service.idle.touched()

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw it as it is now."""
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
        return said(self._service.idle.state(user_id), self._service.data.generated(user_id), asked=asked)


_DELETING = "what models wrote for themselves"


def _after(chosen: float) -> list[tuple[str, float]]:
    """The choices, and what was chosen by other means."""
    return [(_minutes(one), one) for one in sorted({*AFTER, chosen})]


def _most(chosen: int) -> list[tuple[str, int]]:
    return [(plural("{n:,} token", "{n:,} tokens", one), one) for one in sorted({*MOST, chosen})]


def _minutes(wait: float) -> str:
    return _("1 minute") if wait == 1 else _("{n:g} minutes").format(n=wait)


def said(state: IdleState, kept: GeneratedSize, *, asked: bool = False) -> str:
    """Draw what is being done, and what there is of all models. `asked`: whether it is to be deleted."""
    line = html.escape(_line(state))
    drawn = f'<p role="status">{line}</p>' if line else ""
    if not kept.texts:
        return drawn
    tokens = plural("{n:,} token", "{n:,} tokens", kept.tokens)
    texts = plural("{n:,} text", "{n:,} texts", kept.texts)
    there = _("{tokens} in {texts}, {size}").format(tokens=tokens, texts=texts, size=size(kept.size))
    if asked:
        delete = button("hc_learned_deleted", _("Delete"), css="hc-danger hc-bordered")
        keep = button("hc_learned_keep", _("Keep"), css="hc-bordered")
        question = _("Delete {there}? Replies become as slow as they were before.").format(there=there)
        answers = f'<div class="hc-texts-acts">{delete}{keep}</div>'
        return drawn + status.confirmation(_("Delete what was written?"), question, answers)
    delete = button("hc_learned_delete", _("Delete generated texts…"), css="hc-bordered")
    wrote = _("It wrote {there}.").format(there=there)
    return f'{drawn}<p class="hc-quiet">{wrote}</p><div class="hc-texts-acts">{delete}</div>'


def _line(state: IdleState) -> str:
    at_once = plural("one reply", "{n} replies at once", state.streams)
    since = plural("{n:,} token", "{n:,} tokens", state.written)
    match state.phase:
        case "refused":
            return _("It writes nothing: earlier texts may not be used (see above).")
        case "no model":
            return _("It writes nothing while no model is loaded on this machine.")
        case "full":
            written = _("It has written {n:,} tokens for this model, as many as are allowed.")
            return written.format(n=state.tokens)
        case "not now":
            return _("Resting. {reason}").format(reason=error_words(state.reason))
        case "waiting":
            waits = _("Waiting. It begins when nobody has asked for a reply for {time}.")
            return waits.format(time=_minutes(state.chosen.after_minutes))
        case "writing":
            writes = _("Writing now, {at_once}: {tokens} since it began.")
            return writes.format(at_once=at_once, tokens=since)
    return ""
