"""What things are called before a user: sources, figures, what a model is doing. Page and terminal say the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hierchat.engine.step import TARGET
from hierchat.language import _, later

if TYPE_CHECKING:
    from hierchat.runtime.host import HostStatus

SOURCES = {
    TARGET: later("the model itself"),
    "context": later("this chat"),
    "history": later("your earlier chats"),
    "statistics": later("phrases and files"),
}
"""In the order of lists; every other source is a draft model's name."""
NO_MODEL = later("No model is loaded. Choose one above, or download one under Models.")
SAME_WORDS = later("the same words, proved")
UP_TO_TIES = later("the same words but for near ties")
_LOWER = (":blocks", ":nf4")
"""How the name of a model ends that is the target's own copy in lower precision."""
_WAITS = {
    "waiting": later("{name} is loaded as soon as the reply that is being written has ended."),
    "leaving": later("{name} is ejected as soon as the reply that is being written has ended."),
}
_VERBS = {
    "downloading": later("Downloading {name}"),
    "converting": later("Converting {name}"),
    "loading": later("Loading {name}"),
    "compiling": later("Compiling the kernels, once, for {name}"),
    "measuring": later("Measuring the speed of {name}"),
}
_MEGABYTE = 1_000_000


def source_words(source: str) -> str:
    """A source of tokens for a reader."""
    if source in SOURCES:
        return _(SOURCES[source])
    return _("draft model {name}").format(name=model_words(source))


def model_words(name: str) -> str:
    """A draft model's name for a reader."""
    ending = next((one for one in _LOWER if name.endswith(one)), None)
    return _("{name} in lower precision").format(name=name.removesuffix(ending)) if ending else name


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
        ready = _("{name} is ready.").format(name=status.name)
        return ready if status.exact is None else f"{ready} {_exactness(status.exact)}"
    if status.phase == "failed":
        return status.message or _("{name} could not be loaded.").format(name=status.name)
    if waits := _WAITS.get(status.phase):
        return _(waits).format(name=status.name)
    verb = _VERBS.get(status.phase)
    if verb is None:
        return _(NO_MODEL)
    doing = _(verb).format(name=status.name)
    if not status.total:
        return f"{doing}…"
    if status.phase == "downloading":
        done, total = status.done / _MEGABYTE, status.total / _MEGABYTE
        return _("{doing}: {done:,.0f} of {total:,.0f} MB").format(doing=doing, done=done, total=total)
    return _("{doing}: {done:,} of {total:,}").format(doing=doing, done=status.done, total=status.total)


def _exactness(exact: bool) -> str:
    return _("Replies with drafts have {which}.").format(which=_(SAME_WORDS if exact else UP_TO_TIES))
