"""The controls of sampling, and settings to and from their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import gradio as gr
from pydantic import ValidationError

from hierchat.chat.settings import USUAL, own_sampling
from hierchat.config import GenerationSettings
from hierchat.language import _, later, plural

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


class SettingsError(ValueError):
    """Values that make no settings; the message is for the page."""


def controls() -> list[Any]:
    """The controls in the order of FIELDS."""

    def slider(field: str, low: float, high: float, value: float, step: float, info: str) -> Any:
        return gr.Slider(low, high, value, step=step, label=_(LABELS[field]), info=info, buttons=[])

    return [
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
        slider("top_p", 0.05, 1, 1, 0.05, _("1 is off")),
        slider("top_k", 0, 200, 0, 1, _("0 is off")),
        slider("min_p", 0, 1, 0, 0.01, _("0 is off")),
        slider("repetition_penalty", 0.5, 2, 1, 0.05, _("1 is off")),
        slider("presence_penalty", -2, 2, 0, 0.1, _("0 is off")),
        slider("frequency_penalty", -2, 2, 0, 0.1, _("0 is off")),
        gr.Number(
            None,
            label=_(LABELS["seed"]),
            placeholder=_("A new one for each reply"),
            info=_("Same seed, same words"),
        ),
        gr.Textbox(
            "",
            lines=2,
            max_lines=6,
            label=_(LABELS["stop"]),
            info=_("One a line; \\n stands for a line break"),
        ),
        gr.Checkbox(True, label=_(LABELS["end_loops"])),
    ]


def values_of(sampling: Mapping[str, Any]) -> list[Any]:
    """What the controls show for a chat's sampling."""
    values = {"reasoning": "", **USUAL, **own_sampling(GenerationSettings()), **sampling}
    values["stop"] = "\n".join(escaped(string) for string in values["stop"])
    return [values[field] for field in FIELDS]


def sampling_of(values: list[Any]) -> dict[str, Any]:
    """A chat's sampling as the controls show it. Raises SettingsError with a sentence for the page."""
    given = dict(zip(FIELDS, values, strict=True))
    given["reasoning"] = given["reasoning"] or ""
    given["stop"] = tuple(_unescaped(line) for line in (given["stop"] or "").split("\n") if line)
    random = given["seed"] is None
    if random:
        del given["seed"]
    if empty := next((field for field, value in given.items() if value is None), None):
        raise SettingsError(
            _("{name} is empty. Enter a number in Chat settings.").format(name=_(LABELS[empty]))
        )
    try:
        sampling = GenerationSettings(**given).model_dump(mode="json")
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from error
    unsaid = {"reasoning": "", **USUAL}
    said = {
        field: sampling[field] for field in FIELDS if field not in unsaid or sampling[field] != unsaid[field]
    }
    return said | ({"seed": None} if random else {})


def offered(choices: Iterable[str]) -> str:
    """Tells the style sheet what of THINKS the model offers."""
    return f'<i hidden data-thinks="{" ".join(choices)}"></i>'


def escaped(text: str) -> str:
    """Text on one line, what would not show as an escape."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _unescaped(line: str) -> str:
    back = {escape: character for character, escape in _ESCAPES.items()}
    return _ESCAPED.sub(lambda found: back[found[0]], line)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    field, kind = str(first["loc"][0]), first["type"]
    label = _(LABELS[field])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = first["ctx"][name]
        shown = f"{bound:,}" if field != "max_new_tokens" else plural("{n:,} token", "{n:,} tokens", bound)
        return _(words).format(name=label, bound=shown)
    return _(_KINDS.get(kind, _NO_NUMBER)).format(name=label)
