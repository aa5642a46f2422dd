"""A part of Settings: whether other programs may use the model, and with which keys."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from hierchat.language import _, later, plural
from hierchat.store import Access, Key, Store
from hierchat.ui.owner import require_owner
from hierchat.ui.panels.panel import QUIET, Who

_ABOUT = later(
    "Editors, scripts and chat apps can use the model (by the protocol of OpenAI). They see none of your chats."
)
_CHOICES: tuple[tuple[str, Access], ...] = (
    (later("None of them"), "off"),
    (later("Those that have a key"), "keys"),
    (later("Those that have a key, and all programs on this machine"), "open"),
)


class Programs:
    """The switch, and the keys that there are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def build(self) -> None:
        """Its components."""
        self._about = gr.HTML(f'<h2>{_("Other programs")}</h2><p class="hc-quiet">{_(_ABOUT)}</p>')
        self._access = gr.Radio(
            [(_(said), name) for said, name in _CHOICES], label=_("Programs that may use the model"),
            show_label=False, container=False,
            elem_id="hc-programs",
        )  # fmt: skip
        self._keys = gr.HTML("", elem_id="hc-program-keys")

    def wire(self, who: Who, live: Any) -> None:
        """Join the switch to its handler."""

        def choose(chosen: Access, request: gr.Request) -> dict[Any, Any]:
            require_owner(self._store, who(request)[1])
            self._store.set_access(chosen)
            return self.show(owner=True)

        self._access.input(choose, self._access, [*self.outputs, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """What `show` changes."""
        return [self._about, self._access, self._keys]

    def show(self, *, owner: bool) -> dict[Any, Any]:
        """What is chosen, and the keys: for the owner alone."""
        if not owner:
            hidden = gr.update(visible="hidden")
            return {self._about: hidden, self._access: hidden, self._keys: ""}
        access = self._store.access()
        return {
            self._about: gr.update(visible=True),
            self._access: gr.update(value=access, visible=True),
            self._keys: "" if access == "off" else _keys(self._store.all_keys()),
        }


def _keys(keys: list[Key]) -> str:
    rows = "".join(f"<li><b>{html.escape(key.name)}</b> <span>{_about(key)}</span></li>" for key in keys)
    there = f'<h3>{_("Keys")}</h3><ul class="hc-rows">{rows}</ul>' if rows else ""
    away = (
        _(", away: {command}").format(command="<code>python -m hierchat keys remove NAME</code>")
        if rows
        else ""
    )
    address = _("The address to give them is that of this page with {end} at its end.").format(
        end="<code>/v1</code>"
    )
    new = _("A new key: {command}").format(command="<code>python -m hierchat keys add NAME</code>")
    return f'<p class="hc-quiet">{address} {new}{away}.</p>{there}'


def _about(key: Key) -> str:
    kept = (
        _("its own requests are kept, to make its replies faster")
        if key.user_id
        else _("nothing it asks is kept")
    )
    return plural("{n:,} token today; {kept}", "{n:,} tokens today; {kept}", key.today, kept=kept)
