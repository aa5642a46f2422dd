"""The sampling panel: its controls, and settings to and from their values."""

from __future__ import annotations

from typing import Any

import gradio as gr
from pydantic import ValidationError

from hierchat.config import GenerationSettings

FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_new_tokens",
    "seed",
    "stop",
)


class SettingsError(ValueError):
    """Values that make no settings; the message is for the page."""


def controls() -> list[Any]:
    """The controls in the order of FIELDS."""
    return [
        gr.Slider(0, 2, 0, step=0.05, label="Temperature", info="0 always takes the likeliest", buttons=[]),
        gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", info="1 is off", buttons=[]),
        gr.Slider(0, 200, 0, step=1, label="Top-k", info="0 is off", buttons=[]),
        gr.Slider(0, 1, 0, step=0.01, label="Min-p", info="0 is off", buttons=[]),
        gr.Slider(0.5, 2, 1, step=0.05, label="Repetition penalty", info="1 is off", buttons=[]),
        gr.Slider(-2, 2, 0, step=0.1, label="Presence penalty", info="0 is off", buttons=[]),
        gr.Slider(-2, 2, 0, step=0.1, label="Frequency penalty", info="0 is off", buttons=[]),
        gr.Number(1024, precision=0, minimum=1, label="Longest reply, in tokens"),
        gr.Number(0, precision=0, minimum=0, label="Seed", info="Same seed, same words"),
        gr.Textbox("", lines=2, max_lines=4, label="Stop strings", info="One a line"),
    ]


def values_of(settings: GenerationSettings) -> list[Any]:
    """What the controls show for these settings."""
    values = settings.model_dump()
    values["stop"] = "\n".join(settings.stop)
    return [values[field] for field in FIELDS]


def settings_of(values: list[Any]) -> GenerationSettings:
    """The settings that the controls show. Raises SettingsError with a sentence for the page."""
    given = {field: value for field, value in zip(FIELDS, values, strict=True) if value is not None}
    given["stop"] = tuple(line for line in (given.get("stop") or "").split("\n") if line)
    try:
        return GenerationSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", " ")
        raise SettingsError(f"Setting {name}: {first['msg']}.") from error
