"""What settings of a reply are called in OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.config import GenerationSettings

_FIELDS = {
    "temperature": "temperature",
    "max_new_tokens": "max_tokens",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
}
_ALWAYS = ("temperature", "max_new_tokens", "seed")
"""Others are sent where they differ from what is usual: not every server knows them."""


def fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request, from settings by their own names; those that the protocol has no field for are left out."""
    usual = GenerationSettings().model_dump(mode="json")
    return {
        _FIELDS[name]: value
        for name, value in sampling.items()
        if name in _FIELDS and value is not None and (name in _ALWAYS or value != usual[name])
    }
