"""The sampling panel: its controls, and settings to and from their values."""

from __future__ import annotations

from typing import Any

import gradio as gr
from pydantic import ValidationError

from hierchat.config import GenerationSettings

LABELS = {
    "temperature": "Temperature",
    "top_p": "Top-p",
    "top_k": "Top-k",
    "min_p": "Min-p",
    "repetition_penalty": "Repetition penalty",
    "presence_penalty": "Presence penalty",
    "frequency_penalty": "Frequency penalty",
    "max_new_tokens": "Longest reply",
    "seed": "Seed",
    "stop": "Stop strings",
}
"""What each control is called on the page, and in a sentence about it."""
FIELDS = tuple(LABELS)
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
}
_KINDS = {"int_from_float": "must be a whole number"}


class SettingsError(ValueError):
    """Values that make no settings; the message is for the page."""


def controls() -> list[Any]:
    """The controls in the order of FIELDS."""

    def slider(field: str, low: float, high: float, value: float, step: float, info: str) -> Any:
        return gr.Slider(low, high, value, step=step, label=LABELS[field], info=info, buttons=[])

    return [
        slider("temperature", 0, 2, 0, 0.05, "0 always takes the likeliest"),
        slider("top_p", 0.05, 1, 1, 0.05, "1 is off"),
        slider("top_k", 0, 200, 0, 1, "0 is off"),
        slider("min_p", 0, 1, 0, 0.01, "0 is off"),
        slider("repetition_penalty", 0.5, 2, 1, 0.05, "1 is off"),
        slider("presence_penalty", -2, 2, 0, 0.1, "0 is off"),
        slider("frequency_penalty", -2, 2, 0, 0.1, "0 is off"),
        # Without bounds: Gradio answers a number beyond them by itself, and not with a sentence.
        gr.Number(1024, label=LABELS["max_new_tokens"], info="In tokens"),
        gr.Number(0, label=LABELS["seed"], info="Same seed, same words"),
        gr.Textbox("", lines=2, max_lines=4, label=LABELS["stop"], info="One a line"),
    ]


def values_of(settings: GenerationSettings) -> list[Any]:
    """What the controls show for these settings."""
    values = settings.model_dump()
    values["stop"] = "\n".join(settings.stop)
    return [values[field] for field in FIELDS]


def settings_of(values: list[Any]) -> GenerationSettings:
    """The settings that the controls show. Raises SettingsError with a sentence for the page."""
    given = dict(zip(FIELDS, values, strict=True))
    given["stop"] = tuple(line for line in (given["stop"] or "").split("\n") if line)
    if empty := next((field for field, value in given.items() if value is None), None):
        raise SettingsError(f"{LABELS[empty]} is empty. Enter a number in Settings.")
    try:
        return GenerationSettings(**given)
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    field, kind = str(first["loc"][0]), first["type"]
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = first["ctx"][name]
        unit = "" if field != "max_new_tokens" else " token" if bound == 1 else " tokens"
        return f"{LABELS[field]} {words.format(f'{bound:,}')}{unit}. Change it in Settings."
    return f"{LABELS[field]} {_KINDS.get(kind, 'must be a number')}. Change it in Settings."
