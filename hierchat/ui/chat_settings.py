"""The settings of the open chat: the panel that shows them."""

from __future__ import annotations

import html
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.settings import keep_settings, settings_of
from hierchat.language import _, later
from hierchat.store import ChatSettings, Preset
from hierchat.ui import sampling
from hierchat.ui.actions import button
from hierchat.ui.given import Foreign, whole

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.ui.sessions import Session

NO_PRESET = 0
_PLACEHOLDER = later("For example: You are a patient teacher. Answer in short sentences.")


@dataclass(frozen=True, slots=True)
class Panel:
    """Its components."""

    preset: Any
    tools: Any
    system: Any
    sampling: list[Any]
    thinks: Any
    """Invisible: how much the model can be asked to think."""

    @property
    def fields(self) -> list[Any]:
        """What a chat sets; `read` takes their values."""
        return [self.preset, self.system, *self.sampling]

    @property
    def components(self) -> list[Any]:
        """All that `drawn` may change."""
        return [*self.fields, self.tools]


def opener() -> Any:
    """The button in the head of the chat."""
    shown = button(
        "hc_settings", _("Chat settings"), css="hc-settings-button", aria_expanded="false", aria_controls="hc-drawer",
        aria_label=_("Chat settings"), title=_("System prompt, sampling, presets"),
    )  # fmt: skip
    return gr.HTML(shown, elem_id="hc-chat-settings")


def build() -> Panel:
    """The components, in the Blocks context that is open."""
    close = button(
        "hc_settings_close", _("Close"), css="hc-icon", aria_label=_("Close the settings"), title=_("Close")
    )
    with gr.Column(elem_id="hc-drawer"):
        gr.HTML(
            f'<div class="hc-drawer-head"><h2>{_("Chat settings")}</h2>{close}</div>',
            elem_id="hc-drawer-head",
        )
        preset = gr.Dropdown(
            [(_("No preset"), NO_PRESET)],
            value=NO_PRESET,
            label=_("Preset"),
            elem_id="hc-preset",
            filterable=False,
        )
        tools = gr.HTML("", elem_id="hc-preset-tools")
        system = gr.Textbox(
            "", lines=4, max_lines=12, label=_("System prompt"), info=_("Goes before every reply of this chat"),
            placeholder=_(_PLACEHOLDER), elem_id="hc-system",
        )  # fmt: skip
        thinks = gr.HTML("", elem_id="hc-thinks-offered")
        controls = sampling.controls()
    return Panel(preset, tools, system, controls, thinks)


def keep(
    service: ChatService, session: Session, user: int, conversation: int, settings: ChatSettings
) -> None:
    """Let the chat have these settings. Other pages than that of the session are told."""
    if keep_settings(service, user, conversation, settings):
        session.settings_seen = service.news.tell_settings(user, conversation)


def number(shown: str) -> int:
    """The chat whose settings the panel shows, as the page tells it; 0 where it is not stored yet."""
    chat = str(shown).removeprefix("incognito ")
    return int(chat) if chat.isdecimal() else 0


def read(values: list[Any]) -> ChatSettings:
    """The settings in `fields`. Raises SettingsError."""
    preset, system, *rest = values
    prompt = str(system or "")
    return ChatSettings(
        prompt if prompt.strip() else "", sampling.sampling_of(rest), whole(preset or 0) or None
    )


def taken(
    service: ChatService, user: int, conversation: int | None, shown: str, values: list[Any]
) -> ChatSettings:
    """The settings of the chat on the screen: as the panel shows them, unless it still shows another chat's.

    Raises SettingsError.
    """
    if number(shown) != (conversation or 0):
        return settings_of(service, user, conversation)
    return read(values)


def choices(presets: list[Preset]) -> list[tuple[str, int]]:
    """What the list of presets offers."""
    return [(_("No preset"), NO_PRESET), *((preset.name, preset.id) for preset in presets)]


def drawn(
    panel: Panel, presets: list[Preset], settings: ChatSettings, *, fields: bool = True, stored: bool = True
) -> dict[Any, Any]:
    """Updates of the panel; without `fields`, what the user may be typing in stays as it is. Settings of a chat that is
    not `stored` yet are noted by the page."""
    chosen = next((preset for preset in presets if preset.id == settings.preset_id), None)
    update: dict[Any, Any] = {
        panel.preset: gr.update(choices=choices(presets), value=chosen.id if chosen else NO_PRESET),
        panel.tools: tools(chosen, chosen is not None and chosen.settings != settings)
        + ("" if stored else note(settings)),
    }
    if fields:
        update[panel.system] = settings.system_prompt
        update |= zip(panel.sampling, sampling.values_of(settings.sampling), strict=True)
    return update


def tools(preset: Preset | None, changed: bool) -> str:
    """What can be done with the preset that the chat has, if any; `changed`: the chat differs from it by now."""
    if preset is None:
        return f'<div class="hc-tools-row">{button("hc_preset_new", _("Save as a preset…"))}</div>'
    parts = [
        button("hc_preset_save", _("Save changes"), title=_("Into the preset"))
        if changed
        else button("hc_preset_save", _("Save changes"), disabled=""),
        button("hc_preset_new", _("Save as…")),
        button("hc_preset_rename", _("Rename…"), text=preset.name),
        button("hc_preset_delete", _("Delete…"), text=preset.name),
        button(
            "hc_preset_default", _("Use for new chats"), aria_pressed="true" if preset.is_default else "false"
        ),
    ]
    return f'<div class="hc-tools-row" role="group" aria-label="{html.escape(preset.name)}">{"".join(parts)}</div>'


def note(settings: ChatSettings) -> str:
    """Settings of a chat that is not stored yet, for the page to bring back when it is loaded again."""
    said = json.dumps([settings.system_prompt, dict(settings.sampling), settings.preset_id])
    return f'<i hidden data-unsent="{html.escape(said)}"></i>'


def noted(text: str) -> ChatSettings | None:
    """What `note` said; None where it is something else."""
    with suppress(ValueError, TypeError, KeyError, sampling.SettingsError, Foreign):
        prompt, sampled, preset = json.loads(text)
        return read([preset, str(prompt), *sampling.values_of(sampled)])
    return None
