"""What was measured of a reply: a line for the eye, a record for programs."""

from __future__ import annotations

from typing import Any

from hierchat.chat.frames import DESERVED_TOKENS, Figures, Frame
from hierchat.chat.words import in_order, number, percent, source_words
from hierchat.engine.step import TARGET

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
    """Speed, speed-up with its baseline where they deserve it, tokens, and where the words came from."""
    parts = []
    tokens = "1 token" if figures.tokens == 1 else f"{figures.tokens:,} tokens"
    speedup, plain = figures.deserved_speedup, figures.baseline_tokens_per_second
    if figures.tokens_per_second is not None and figures.tokens >= DESERVED_TOKENS:
        parts.append(f"{number(figures.tokens_per_second)} tok/s")
    if speedup is not None and plain is not None:
        parts.append(f"{speedup:.2f} times as fast as without drafts ({number(plain)} tok/s, measured)")
    if figures.tokens:
        brief = figures.tokens < DESERVED_TOKENS and figures.seconds
        parts.append(f"{tokens} in {number(figures.seconds)} s" if brief else tokens)
    if drafted := [one for one in in_order(figures.shares) if one != TARGET and figures.shares[one] > 0]:
        parts.append(
            "from " + ", ".join(f"{source_words(one)} {percent(figures.shares[one])}" for one in drafted)
        )
    if ended := _ENDS.get(figures.finish or ""):
        parts.append(ended)
    return " · ".join(parts)


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
