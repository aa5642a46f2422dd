"""What things are called before a user: sources, figures, what a model is doing. Page and terminal say the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hierchat.engine.step import TARGET

if TYPE_CHECKING:
    from hierchat.runtime.host import HostStatus

SOURCES = {
    TARGET: "the model itself",
    "context": "this chat",
    "history": "your earlier chats",
    "statistics": "phrases and files",
}
"""In the order of lists; every other source is a draft model's name."""
NO_MODEL = "No model is loaded. Choose one above, or fetch one under Models."
SAME_WORDS = "the same words, proved"
UP_TO_TIES = "the same words but for near ties"
_LOWER = (":blocks", ":nf4")
"""How the name of a model ends that is the target's own copy in lower precision."""
_VERBS = {
    "downloading": "Downloading",
    "converting": "Converting",
    "loading": "Loading",
    "compiling": "Compiling the kernels, once, for",
    "measuring": "Measuring the speed of",
}
_MEGABYTE = 1_000_000


def source_words(source: str) -> str:
    """A source of tokens for a reader."""
    return SOURCES.get(source) or f"draft model {model_words(source)}"


def model_words(name: str) -> str:
    """A draft model's name for a reader."""
    ending = next((one for one in _LOWER if name.endswith(one)), None)
    return f"{name.removesuffix(ending)} in lower precision" if ending else name


def in_order(sources: Iterable[str]) -> list[str]:
    """Sources as lists show them: the table's order, then draft models by name, the model alone last."""
    ranks = {name: rank for rank, name in enumerate(SOURCES)}
    return sorted(set(sources), key=lambda s: (s == TARGET, ranks.get(s, len(ranks)), s))


def number(value: float) -> str:
    """A figure for the eye: one decimal below 100, thousands separated."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a whole percentage; a trace of something is not nothing."""
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def host_sentence(status: HostStatus) -> str:
    """What the model host is doing now."""
    if status.phase == "ready":
        ready = f"{status.name} is ready."
        return ready if status.exact is None else f"{ready} {_exactness(status.exact)}"
    if status.phase == "failed":
        return status.message or f"{status.name} could not be loaded."
    verb = _VERBS.get(status.phase)
    if verb is None:
        return NO_MODEL
    if not status.total:
        return f"{verb} {status.name}…"
    if status.phase == "downloading":
        done, total = status.done / _MEGABYTE, status.total / _MEGABYTE
        return f"{verb} {status.name}: {done:,.0f} of {total:,.0f} MB"
    return f"{verb} {status.name}: {status.done:,} of {status.total:,}"


def _exactness(exact: bool) -> str:
    return f"Replies with drafts have {SAME_WORDS if exact else UP_TO_TIES}."
