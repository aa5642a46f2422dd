"""What was measured of a reply: a line for the eye, a record for programs."""

from __future__ import annotations

from typing import Any

from hierchat.chat.frames import Figures, Frame
from hierchat.chat.words import share_words, speed_words, time_words

_ENDS = {
    "loop": "ended: it had come to repeat itself",
    "length": "cut at the longest reply allowed",
    "context": "cut: the context window is full",
    "stopped": "stopped",
    "error": "broken off",
}
_RECORD = (
    "tokens",
    "seconds",
    "total_seconds",
    "waited_seconds",
    "first_token_seconds",
    "tokens_per_second",
    "tokens_per_forward",
    "forwards",
    "acceptance_rate",
    "baseline_tokens_per_second",
    "baseline",
    "prompt_tokens",
    "prompt_read",
    "read_seconds",
    "seed",
    "stop_string",
)


def figures_line(figures: Figures) -> str:
    """The same as below a reply of the page: speed, tokens and seconds, and where the words came from."""
    parts = [speed_words(figures), *time_words(figures)]
    if sources := [words for _source, words in share_words(figures.shares)]:
        parts.append(", ".join(sources))
    parts.append(_ENDS.get(figures.finish or "", ""))
    return " · ".join(filter(None, parts))


def record(frame: Frame, model: str, chat: int | None) -> dict[str, Any]:
    """A reply as one JSON object. `chat`: its number in the store. Times are seconds; null: not measured."""
    figures = {name: getattr(frame.figures, name) for name in _RECORD}
    figures |= {
        "speedup": frame.figures.deserved_speedup,
        "forwards": frame.figures.forwards or None,  # servers do not tell them
        "sources": dict(frame.figures.shares),
    }
    return {
        "text": frame.text,
        "model": model,
        "finish": frame.finish,
        "notice": frame.notice,
        "chat": chat,
        "figures": figures,
    }
