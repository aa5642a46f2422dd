"""A part of Settings: whether the model may write for itself while nobody needs the machine, and what there is."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later, plural
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.charts import size
from hierchat.page.panels.panel import QUIET, SessionOf
from hierchat.store import GeneratedSize

if TYPE_CHECKING:
    from hierchat.chat.idle_generation import IdleState
    from hierchat.chat.service import ChatService

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
    quiet = _(
        "The model can write texts for itself. Replies that say similar things then come faster; no word of a reply "
        "changes. It is off until you allow it."
    )
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts)
    title = _("Writing while nobody needs the machine")
    return f'<h2>{title}</h2><p class="hc-quiet">{quiet}</p><dl class="hc-facts hc-learning">{rows}</dl>'


class IdlePart:
    """Switch idle generation in the settings. Each user decides for themselves; guests, of whom nothing stays, have
    it not."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._users = service.users

    def build(self) -> None:
        """The components."""
        self._about = gr.HTML(about(), elem_id="hc-learning-about")
        self._on = gr.Checkbox(
            False, label=_("The model may write for itself"), container=False, elem_id="hc-learning-on"
        )
        with gr.Row(elem_id="hc-learning-choice"):
            self._after = gr.Dropdown(
                _after(10.0),
                value=10.0,
                label=_("Begin after"),
                elem_id="hc-learning-after",
                filterable=False,
                min_width=0,
            )
            self._most = gr.Dropdown(
                _most(500_000), value=500_000, label=_("Write at most, for each model"), elem_id="hc-learning-most",
                filterable=False, min_width=0,
            )  # fmt: skip
        self._state = gr.HTML("", elem_id="hc-learning-state", apply_default_css=False, js_on_load=None)
        self._timer = gr.Timer(POLL_SECONDS, active=False)

    @property
    def outputs(self) -> list[Any]:
        """Return the components that `show` changes."""
        return [self._about, self._on, self._after, self._most, self._state, self._timer]

    def wire(self, bus: Any, session_of: SessionOf, live: Any) -> None:
        """Join them to their handlers."""

        def choose(on: bool, after: float, most: int, request: gr.Request) -> dict[Any, Any]:
            _, user = session_of(request)
            if not self._users.is_guest(user):
                before = self._users.idle_settings(user)
                chosen = replace(
                    before,
                    on=bool(on),
                    after_minutes=after if after in AFTER else before.after_minutes,
                    most_tokens=most if most in MOST else before.most_tokens,
                )
                self._service.idle.choose(user, chosen)
            return self._drawn(user)

        def tick(request: gr.Request) -> dict[Any, Any]:
            session, user = session_of(request)
            if session.panel != "settings":
                return {self._timer: gr.update(active=False)}
            return {self._state: self._said(user, asked=session.removing == _DELETING)}

        def ask(request: gr.Request) -> dict[Any, Any]:
            session, user = session_of(request)
            session.removing = _DELETING
            return {self._state: self._said(user, asked=True)}

        def keep(request: gr.Request) -> dict[Any, Any]:
            session, user = session_of(request)
            session.removing = ""
            return {self._state: self._said(user)}

        def delete(request: gr.Request) -> dict[Any, Any]:
            session, user = session_of(request)
            session.removing = ""
            whole = self._service.idle.delete(user)
            said = status.notice(
                _("Deleted: all that models wrote for themselves.") + ("" if whole else f" {_(_NOT_WHOLE)}")
            )
            return {self._state: self._said(user), live: said}

        def typing(request: gr.Request) -> None:
            session_of(request)  # raises Stale where the page is unknown
            self._service.idle.touched()

        chosen, state = [self._on, self._after, self._most], [self._state, live]
        for control in chosen:
            control.input(choose, chosen, [*self.outputs, live], trigger_mode="always_last", **QUIET)
        self._timer.tick(tick, None, [self._state, self._timer, live], **QUIET)
        bus.hc_learned_delete(ask, None, state, **QUIET)
        bus.hc_learned_keep(keep, None, state, **QUIET)
        bus.hc_learned_deleted(delete, None, state, **QUIET)
        bus.hc_typing(typing, None, None, queue=False, **QUIET)

    def show(self, user_id: int) -> dict[Any, Any]:
        """Draw it as it is now."""
        return self._drawn(user_id)

    def _drawn(self, user_id: int) -> dict[Any, Any]:
        if self._users.is_guest(user_id):
            hidden = gr.update(visible="hidden")
            return dict.fromkeys((self._about, self._on, self._after, self._most), hidden) | {
                self._state: "", self._timer: gr.update(active=False)
            }  # fmt: skip
        chosen = self._users.idle_settings(user_id)
        return {
            self._about: gr.update(visible=True),
            self._on: chosen.on,
            self._after: gr.update(
                choices=_after(chosen.after_minutes),
                value=chosen.after_minutes,
                visible=chosen.on,
            ),
            self._most: gr.update(
                choices=_most(chosen.most_tokens), value=chosen.most_tokens, visible=chosen.on
            ),
            self._state: self._said(user_id),
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
        return (
            f'{drawn}<div class="hc-ask-remove" role="group" aria-label="{_("Delete what was written?")}">'
            f"<p>{_('Delete {there}? Replies become as slow as they were before.').format(there=there)}</p>"
            f'<div class="hc-texts-acts">{delete}{keep}</div></div>'
        )
    delete = button("hc_learned_delete", _("Delete what it wrote…"), css="hc-bordered")
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
            return _("Resting. {reason}").format(reason=_(state.reason))
        case "waiting":
            waits = _("Waiting. It begins when nobody has asked for a reply for {time}.")
            return waits.format(time=_minutes(state.chosen.after_minutes))
        case "writing":
            writes = _("Writing now, {at_once}: {tokens} since it began.")
            return writes.format(at_once=at_once, tokens=since)
    return ""
