"""Put sources, figures and the state of the model into words for a user. Page and terminal say the same."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hierchat.chat.frames import DESERVED_TOKENS, Figures
from hierchat.drafting.draft_tree import DOCUMENTS
from hierchat.engine.engine import TARGET
from hierchat.language import _, error_words, later, plural
from hierchat.language import number as written

if TYPE_CHECKING:
    from hierchat.runtime.model_slot import SlotStatus


SOURCES = {
    TARGET: later("the model itself"),
    "context": later("this chat"),
    DOCUMENTS: later("documents"),
    "history": later("your earlier chats"),
    "statistics": later("other texts"),
    "head": later("draft head"),
}
"""In the order of lists; every other source is a draft model's name."""
NO_MODEL = later("No model is loaded. Choose one above, or download one under Models.")
SAME_WORDS = later("the same words, proved")
UP_TO_TIES = later("the same words but for near ties")
TIMES = "\N{MULTIPLICATION SIGN}"
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
    "compiling": later("Compiling the kernels for {name}, once, for about a minute"),
    "measuring": later("Measuring the speed of {name}, for some seconds"),
}
_MEGABYTE = 1_000_000


def source_words(source: str) -> str:
    """Return the name of a source of tokens for a reader."""
    if source in SOURCES:
        return _(SOURCES[source])
    return _("draft model {name}").format(name=model_words(source))


def model_words(name: str) -> str:
    """Return the name of a draft model for a reader."""
    ending = next((one for one in _LOWER if name.endswith(one)), None)
    return _("{name} in lower precision").format(name=name.removesuffix(ending)) if ending else name


def in_order(sources: Iterable[str]) -> list[str]:
    """Sort sources as lists show them: the table's order, then draft models by name, the model alone last."""
    ranks = {name: rank for rank, name in enumerate(SOURCES)}
    return sorted(set(sources), key=lambda s: (s == TARGET, ranks.get(s, len(ranks)), s))


def number(value: float) -> str:
    return written(value, ",.1f" if value < 100 else ",.0f")


def percent(share: float) -> str:
    """Format a share as a whole percentage; "<1 %" for one above 0 that would round to it."""
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def pace(speedup: float) -> str:
    """Say by which factor something is faster or slower; empty if one decimal shows no difference."""
    ratio = written(max(speedup, 1 / speedup), ".1f")
    if ratio == written(1, ".1f"):
        return ""
    return (_("{ratio} faster") if speedup > 1 else _("{ratio} slower")).format(ratio=ratio + TIMES)


def against_plain(speedup: float) -> str:
    """Say how much faster a model with its drafts is than without."""
    told = pace(speedup)
    return _("{pace} than without drafts").format(pace=told) if told else _("as fast as without drafts")


def rate(figures: Figures) -> float | None:
    """Return the tokens a second since Send; None if the reply is too short to tell."""
    enough = figures.tokens >= DESERVED_TOKENS and figures.whole_seconds
    return figures.tokens / figures.whole_seconds if enough else None


def speed_words(figures: Figures) -> str:
    """Return the first figure of a reply: speed-up, else tokens a second; empty for too few tokens."""
    if figures.deserved_speedup:
        return against_plain(figures.deserved_speedup)
    told = rate(figures)
    return _("{speed} tok/s").format(speed=number(told)) if told else ""


def time_words(figures: Figures) -> list[str]:
    """Say how long a reply took since Send, and what it waited for; waits below a second are left out."""
    if not figures.tokens:
        return []
    written, whole = tokens(figures.tokens), figures.whole_seconds
    besides = (
        (later("waited {time} for other replies"), figures.waited_seconds or 0.0),
        (later("waited {time} until the model was ready"), sum(figures.loading.values())),
        (later("read the prompt for {time}"), figures.read_seconds or 0.0),
    )
    return [
        _("{tokens} in {time}").format(tokens=written, time=seconds_words(whole)) if whole else written,
        *(_(words).format(time=seconds_words(spent)) for words, spent in besides if spent >= 1),
    ]


def tokens(count: int) -> str:
    return plural("{n:,} token", "{n:,} tokens", count)


def seconds_words(seconds: float) -> str:
    """Format a time in seconds: a decimal below ten seconds."""
    return _("{n} s").format(n=written(seconds, ".1f" if seconds < 9.95 else ",.0f"))


def share_words(shares: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the sources of a reply's tokens with their shares in words, the model itself last; none without drafts."""
    named = [one for one in in_order(shares) if shares[one] > 0]
    return [(one, f"{source_words(one)} {percent(shares[one])}") for one in named] if named[:-1] else []


def slot_sentence(status: "SlotStatus") -> str:
    """Return the sentence that says what the model slot is doing now."""
    if status.phase == "ready":
        ready = _("{name} is ready.").format(name=status.name)
        if status.exact is None:
            return ready
        which = _(SAME_WORDS if status.exact else UP_TO_TIES)
        return ready + " " + _("Replies with drafts have {which}.").format(which=which)
    if status.phase == "failed":
        return error_words(status.message) or _("{name} could not be loaded.").format(name=status.name)
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
