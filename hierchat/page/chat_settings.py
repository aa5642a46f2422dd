"""Draw the panel of the open chat's settings, and read it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
from pydantic import ValidationError

from hierchat.chat.conversations import USUAL, own_sampling
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.language import _, later, plural
from hierchat.language import number as written
from hierchat.page.event_data import PageEvent, whole
from hierchat.page.page_sessions import Session
from hierchat.page.panels.panel import still
from hierchat.page.templates import Macros
from hierchat.store.records import ChatSettings, Preset

LABELS = {
    "reasoning": later("Thinking"),
    "temperature": later("Temperature"),
    "max_new_tokens": later("Longest reply"),
    "top_p": later("Top-p"),
    "top_k": later("Top-k"),
    "min_p": later("Min-p"),
    "repetition_penalty": later("Repetition penalty"),
    "presence_penalty": later("Presence penalty"),
    "frequency_penalty": later("Frequency penalty"),
    "seed": later("Seed"),
    "stop": later("Stop strings"),
    "end_loops": later("End a reply that repeats itself"),
    "tools": later("The model may call tools"),
}
"""What each control is called on the page, and in a sentence about it."""
FIELDS = tuple(LABELS)
THINKS: dict[str, str] = {
    "": later("As the model does"),
    "off": later("Off"),
    "low": later("A little"),
    "medium": later("Some"),
    "on": later("On"),
    "high": later("A lot"),
}
"""How much a model thinks before it answers. Models offer some of it (assets/style/thought.css)."""
_BOUNDS = {
    "greater_than_equal": ("ge", later("{name} must be at least {bound}. Change it in Chat settings.")),
    "greater_than": ("gt", later("{name} must be more than {bound}. Change it in Chat settings.")),
    "less_than_equal": ("le", later("{name} must be at most {bound}. Change it in Chat settings.")),
    "less_than": ("lt", later("{name} must be less than {bound}. Change it in Chat settings.")),
}
_KINDS = {"int_from_float": later("{name} must be a whole number. Change it in Chat settings.")}
_NO_NUMBER = later("{name} must be a number. Change it in Chat settings.")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_ESCAPED = re.compile(r"\\[\\ntr]")


class InvalidSettings(ValueError):
    """Raised for values that make no settings; the message is for the page."""


def sampling_controls() -> list[Any]:
    """Make the controls of sampling, in the order of FIELDS."""

    def slider(field: str, low: float, high: float, value: float, step: float, info: str) -> Any:
        return gr.Slider(low, high, value, step=step, label=_(LABELS[field]), info=info, buttons=[])

    same_words = _("Same seed, same words")
    one_a_line = _("One per line; write {escape} for a line break").format(escape="\\n")
    plain = [
        gr.Radio(
            [(_(said), chosen) for chosen, said in THINKS.items()],
            value="",
            label=_(LABELS["reasoning"]),
            info=_("Before the answer: it takes longer, and hard questions need it"),
            elem_id="hc-thinks",
        ),
        slider("temperature", 0, 2, 0, 0.05, _("0 always takes the likeliest")),
        # Without bounds: Gradio answers a number beyond them by itself, and not with a sentence.
        gr.Number(1024, label=_(LABELS["max_new_tokens"]), info=_("In tokens")),
    ]
    tools = gr.Checkbox(False, label=_(LABELS["tools"]), info=_("You are asked before each call"))
    gr.HTML(_drawn.advanced())
    with gr.Column(elem_classes=["hc-advanced"]):
        advanced = [
            slider("top_p", 0.05, 1, 1, 0.05, _("1 is off")),
            slider("top_k", 0, 200, 0, 1, _("0 is off")),
            slider("min_p", 0, 1, 0, 0.01, _("0 is off")),
            slider("repetition_penalty", 0.5, 2, 1, 0.05, _("1 is off")),
            slider("presence_penalty", -2, 2, 0, 0.1, _("0 is off")),
            slider("frequency_penalty", -2, 2, 0, 0.1, _("0 is off")),
            gr.Number(
                None, label=_(LABELS["seed"]), placeholder=_("Each reply gets a new one"), info=same_words
            ),
            gr.Textbox("", lines=2, max_lines=6, label=_(LABELS["stop"]), info=one_a_line),
            gr.Checkbox(True, label=_(LABELS["end_loops"])),
        ]
    return [*plain, *advanced, tools]


def values_of(sampling: Mapping[str, Any]) -> list[Any]:
    """Return the values that the controls show for a chat's sampling."""
    values = {"reasoning": "", **USUAL, **own_sampling(GenerationSettings()), **sampling}
    values["stop"] = "\n".join(escaped(string) for string in values["stop"])
    return [values[field] for field in FIELDS]


def sampling_of(values: list[Any]) -> dict[str, Any]:
    """Read a chat's sampling from the controls' values. Raises InvalidSettings with a sentence for the page."""
    given = dict(zip(FIELDS, values, strict=True))
    given["reasoning"] = given["reasoning"] or ""
    lines, back = (given["stop"] or "").split("\n"), {escape: sign for sign, escape in _ESCAPES.items()}
    given["stop"] = tuple(_ESCAPED.sub(lambda found: back[found[0]], line) for line in lines if line)
    random = given["seed"] is None
    if random:
        del given["seed"]
    if empty := next((field for field, value in given.items() if value is None), None):
        raise InvalidSettings(
            _("{name} is empty. Enter a number in Chat settings.").format(name=_(LABELS[empty]))
        )
    try:
        sampling = GenerationSettings(**given).model_dump(mode="json")
    except ValidationError as error:
        raise InvalidSettings(_sentence(error)) from error
    unsaid = {"reasoning": "", **USUAL}
    said = {
        field: sampling[field] for field in FIELDS if field not in unsaid or sampling[field] != unsaid[field]
    }
    return said | ({"seed": None} if random else {})


def offered(choices: Iterable[str]) -> str:
    """Return hidden HTML that tells the style sheet which choices of THINKS the model offers."""
    return f'<i hidden data-thinks="{" ".join(choices)}"></i>'


def escaped(text: str) -> str:
    """Return a text on one line, with characters that would not show as escapes."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    field, kind = str(first["loc"][0]), first["type"]
    label = _(LABELS[field])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = first["ctx"][name]
        shown = written(bound) if field != "max_new_tokens" else plural("{n:,} token", "{n:,} tokens", bound)
        return _(words).format(name=label, bound=shown)
    return _(_KINDS.get(kind, _NO_NUMBER)).format(name=label)


NO_PRESET = 0


def notes_box(lines: int, **more: Any) -> Any:
    """Make the box for the user's notes about themselves, which stands in two places."""
    label = _("Notes about me")
    return gr.Textbox("", lines=lines, label=label, interactive=True, elem_classes=["hc-notes"], **more)


class ChatSettingsComponents:
    """Components of the drawer of chat settings, made inside the Blocks context that is open."""

    def __init__(self) -> None:
        with gr.Column(elem_id="hc-drawer"):
            gr.HTML(_drawn.drawer(), elem_id="hc-drawer-head")
            self.preset = gr.Dropdown(
                choices([]), value=NO_PRESET, label=_("Preset"), elem_id="hc-preset", filterable=False
            )
            self.tools = gr.HTML("", elem_id="hc-preset-tools")
            example = _("For example: You are a patient teacher. Answer in short sentences.")
            self.system = gr.Textbox(
                "", lines=4, max_lines=12, label=_("System prompt"), placeholder=example, elem_id="hc-system",
                info=_("The model reads it before every reply of this chat"),
            )  # fmt: skip
            self.about = notes_box(2, max_lines=8, info=_("Used in all chats. Only you write them."))
            self.notes = gr.Checkbox(True, label=_("Tell the model my notes in this chat"))
            self.documents = still("hc-documents")
            self.reading = gr.Timer(1.0, active=False)
            """Asks how far documents are read."""
            self.thinks = gr.HTML("", elem_id="hc-thinks-offered")
            """Invisible: how much the model can be asked to think."""
            self.sampling = sampling_controls()
        self.fields = [self.preset, self.system, self.notes, *self.sampling]
        """What a chat sets; `read` takes their values."""


_drawn = Macros("page.html")
opener = _drawn.opener


def keep(service: ChatService, session: Session, conversation: int, settings: ChatSettings) -> None:
    """Store a chat's settings. Other pages than that of the session are notified."""
    if (change := service.chats.keep_settings(session.user, conversation, settings)) is not None:
        session.settings_seen = change


def number(shown: str) -> int:
    """Return the id of the chat whose settings the panel shows, as the page sends it; 0 if it is not stored yet."""
    chat = shown.rpartition(" ")[2]
    return int(chat) if chat.isdecimal() else 0


def read(values: Sequence[Any]) -> ChatSettings:
    """Read chat settings from the values of `fields`. Raises InvalidSettings."""
    preset, system, notes, *rest = values
    prompt = str(system or "")
    chosen = whole(preset or 0) or None
    return ChatSettings(prompt if prompt.strip() else "", sampling_of(rest), chosen, bool(notes))


def taken(service: ChatService, event: PageEvent) -> ChatSettings:
    """Return the open chat's settings: the panel's, or stored ones if it shows another's. Raises InvalidSettings."""
    session, controls = event.session, event.controls
    if number(controls.shown) != (session.screen.conversation or 0):
        return service.chats.settings(session.user, session.screen.conversation, session.screen.project)
    return read(controls.settings)


def choices(presets: list[Preset]) -> list[tuple[str, int]]:
    return [(_("No preset"), NO_PRESET), *((preset.name, preset.id) for preset in presets)]


def drawn(
    panel: ChatSettingsComponents,
    presets: list[Preset],
    settings: ChatSettings,
    *,
    fields: bool = True,
) -> dict[Any, Any]:
    """Draw the settings panel; without `fields`, what is being typed stays."""
    chosen = next((preset for preset in presets if preset.id == settings.preset_id), None)
    changed = chosen is not None and chosen.settings != replace(settings, notes=True)
    update: dict[Any, Any] = {
        panel.preset: gr.update(choices=choices(presets), value=chosen.id if chosen else NO_PRESET),
        panel.tools: _drawn.preset_tools(chosen, changed),
    }
    if fields:
        update |= {panel.system: settings.system_prompt, panel.notes: settings.notes}
        update |= zip(panel.sampling, values_of(settings.sampling), strict=True)
    return update
