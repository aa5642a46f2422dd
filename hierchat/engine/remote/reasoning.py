"""How much a model of a server thinks: what a kind of server can be asked, in which fields, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hierchat.config import Reasoning
from hierchat.thoughts import CLOSES, OPENS, nearest, parted

NOT_TAKEN = (400, 422)
"""Statuses of a server that does not know a field, or its value."""
LEFT_OUT = "The server at {url} does not let one choose how much this model thinks, so that was left out."
_TEMPLATE = ("vllm", "llamacpp")
"""Who owns the models of servers that hand variables to a model's template."""
_SWITCH: Mapping[Reasoning, bool] = {"off": False, "on": True}
_EFFORTS: Mapping[Reasoning, str] = {"low": "low", "medium": "medium", "high": "high"}
_OF_HIERCHAT: Mapping[Reasoning, str] = {"off": "none", **_EFFORTS}
_ALWAYS_THINKS = re.compile(r"gpt.?oss", re.IGNORECASE)
"""Models that can be asked for an effort alone, by their names."""


def choices(owner: str, model: str) -> tuple[Reasoning, ...]:
    """What can be chosen of a model, from the least on; `owner`: by what a server's kind is known. Whether the model
    thinks at all, no server tells."""
    return tuple(_SWITCH if _by_switch(owner, model) else _efforts(owner, model))


def asked(owner: str, model: str, chosen: Reasoning) -> dict[str, Any]:
    """Fields of a request: for what was chosen, or the nearest to it. None where nothing was."""
    if not chosen:
        return {}
    if _by_switch(owner, model):
        on = _SWITCH[nearest(chosen, tuple(_SWITCH))]
        return {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}
    efforts = _efforts(owner, model)
    effort = efforts[nearest(chosen, tuple(efforts))]
    if owner == "llamacpp":
        return {"chat_template_kwargs": {"reasoning_effort": effort}}
    return {"reasoning_effort": effort}


def _by_switch(owner: str, model: str) -> bool:
    return owner in _TEMPLATE and not _ALWAYS_THINKS.search(model)


def _efforts(owner: str, model: str) -> Mapping[Reasoning, str]:
    return _OF_HIERCHAT if owner == "hierchat" else _EFFORTS


class Thoughts:
    """Puts reasoning, where a server sends it apart, into the text in front, as models themselves write it."""

    def __init__(self, so_far: str = "") -> None:
        """`so_far`: the text that goes on. What comes behind its thought is text, whatever the server takes it for."""
        self._open = False
        self._inside = parted(so_far).thinking
        self._past = bool(so_far) and not self._inside

    def text(self, thought: str, text: str) -> str:
        """What these add to the reply."""
        if self._past:
            return thought + text
        out = ""
        if thought:
            out = thought if self._open or self._inside else f"{OPENS}\n{thought}"
            self._open = True
        return out + (self.end() + text if text else "")

    def end(self) -> str:
        """What closes it, if it is open."""
        was, self._open = self._open, False
        return f"\n{CLOSES}\n\n" if was else ""
