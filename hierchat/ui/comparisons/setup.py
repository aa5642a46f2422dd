"""Which two configurations Compare runs: one line, and the form behind it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import gradio as gr

from hierchat.chat.comparison import ARMS
from hierchat.chat.configuration import (
    FROM,
    USUAL,
    Configuration,
    Pair,
    WrongConfiguration,
    configuration,
    names,
)
from hierchat.chat.frames import Arm
from hierchat.language import _, later
from hierchat.ui import status
from hierchat.ui.actions import button
from hierchat.ui.given import of_type, record
from hierchat.ui.panels.panel import Who

_BOTH = later(
    "Both answer the next message, one after the other. Two models are loaded in turn, and the present one comes back "
    "at the end."
)
_LEGENDS: dict[Arm, str] = {"first": later("First"), "second": later("Second, which stays in the chat")}


def line(pair: Pair) -> str:
    """Both sides in a few words."""
    named = names(pair)
    first, second = (f"<b>{html.escape(named[arm])}</b>" for arm in ARMS)
    return f'<p class="hc-against" role="status">{first} {_("against")} {second}</p>'


def form(models: Sequence[str]) -> str:
    """The form, folded, as the usual pair has it. Its values reach the server as JSON (comparisons.js)."""
    sides = "".join(_side(arm, USUAL[arm], models) for arm in ARMS)
    reset = button("hc_setup_reset", _("As at first"))
    return (
        f'<details class="hc-setup"><summary>{_("Change")}</summary><form autocomplete="off">{sides}'
        f'<p class="hc-quiet">{_(_BOTH)}</p>{reset}</form></details>'
    )


def _side(arm: Arm, chosen: Configuration, models: Sequence[str]) -> str:
    databases = _select(
        _("Drafts come from"),
        "databases",
        {name: _(said) for name, said in FROM.items()},
        chosen.drafting.databases,
    )
    drafts = _select(
        _("Draft models"),
        "draft_models",
        {"1": _("as planned"), "": _("none")},
        "1" if chosen.drafting.draft_models else "",
    )
    of_model = _select(
        _("Model"), "model", {"": _("the one that is loaded"), **{name: name for name in models}}, ""
    )
    return (
        f'<fieldset data-arm="{arm}"><legend>{_(_LEGENDS[arm])}</legend>{of_model}{databases}{drafts}'
        f'<label>{_("Temperature")}<input name="temperature" inputmode="decimal" placeholder="{_("as set")}"></label>'
        f'<label>{_("Seed")}<input name="seed" inputmode="numeric" placeholder="{_("as set")}"></label></fieldset>'
    )


def _select(label: str, name: str, options: dict[Any, str], chosen: str) -> str:
    entries = "".join(
        f'<option value="{html.escape(value)}"{" selected" if value == chosen else ""}>{html.escape(said)}</option>'
        for value, said in options.items()
    )
    return f'<label>{label}<select name="{name}">{entries}</select></label>'


def pair_of(text: str) -> Pair:
    """What the form says. Raises WrongConfiguration and Foreign."""
    given = record(text)
    return {arm: configuration(of_type(given.get(arm), dict)) for arm in ARMS}


class SetupHandlers:
    """What the form does."""

    def __init__(self, who: Who, shown: Any) -> None:
        self._who = who
        self._shown = shown

    def choose(self, event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
        """The pair for the next comparison of this page. A wrong value leaves it as it was."""
        session = self._who(request)[0]
        try:
            session.pair = pair_of(str(event._data["text"]))
        except WrongConfiguration as error:
            return {
                self._shown: line(session.pair)
                + status.error(_("{error} The pair stays as above.").format(error=error))
            }
        return {self._shown: line(session.pair)}
