"""A reply as it is drawn, its words marked by where they came from. Pure functions."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from hierchat.drafting.growing.layout import MAX_MATCH
from hierchat.engine.step import TARGET
from hierchat.language import _, later, plural
from hierchat.ui.actions import KEY
from hierchat.ui.markdown import render_marked
from hierchat.ui.outline import below_message
from hierchat.ui.sidebar import UNTITLED
from hierchat.ui.sources import legend, style_of
from hierchat.ui.thought import drawn

if TYPE_CHECKING:
    from hierchat.chat.origins import Run


def marked(runs: Sequence[Run], text: str, seconds: float | None = None, key: object = None) -> str:
    """A reply whose text the runs make up, and the legend of their sources. The words are one tab stop, with arrow keys
    from run to run (assets/page/origin.js). `seconds`, `key`: as in `thought.drawn`."""
    told: set[int] = set()

    def wrap(number: int, piece: str) -> str:
        run = runs[number]
        facts = "" if number in told else _facts(run, first=not told)
        told.add(number)
        return f'<span class="hc-run hc-src-{style_of(run.source).slug}" data-run="{number}"{facts}>{piece}</span>'

    ends = list(accumulate(len(run.text) for run in runs))

    def draw(part: str, begin: int) -> str:
        return render_marked(part, [min(max(end - begin, 0), len(part)) for end in ends], wrap)

    inside = below_message(drawn(text, seconds, key, draw))
    return f'<div class="hc-text hc-marked">{inside}</div>{legend(run.source for run in runs)}'


def _facts(run: Run, *, first: bool) -> str:
    """What the first piece of a run carries: what is said of it, and where a click leads."""
    values = {"tabindex": "0" if first else "-1", "data-said": said(run)}
    if run.there is not None:
        message = json.dumps({"message": str(run.origin.origin_id), "phrase": run.phrase})
        values |= {"data-act": "hc_origin", "data-key": KEY, "data-id": str(run.there.conversation_id)}
        values |= {"data-text": message, "role": "link"}
    else:
        values["role"] = "mark"
    return "".join(f' {name}="{html.escape(value)}"' for name, value in values.items())


def said(run: Run) -> str:
    """Where a run came from, what it was found by, and how sure that was, in plain words."""
    origin = run.origin
    where = _WHERE.get(origin.slot, _unknown)(run)
    parts = [f"{where}."]
    if origin.matched and origin.slot != "successors":
        more = _(" or more") if origin.matched >= MAX_MATCH else ""
        parts.append(
            plural(
                "The token before it is the same there.",
                "The {n} tokens{more} before it are the same there.",
                origin.matched,
                more=more,
            )
        )
    if origin.chance is not None:
        each = plural(
            "Expected to be right with a chance of {chance}.",
            "Each token was expected to be right with a chance of {chance}.",
            run.tokens,
            chance=chance_words(origin.chance),
        )
        parts.append(each)
    if run.there is not None:
        parts.append(_("Click to go there."))
    return " ".join(parts)


def chance_words(chance: float) -> str:
    """A chance as a percentage that claims neither certainty nor impossibility."""
    return _("over 99 %") if chance > 0.99 else _("under 1 %") if chance < 0.01 else f"{chance * 100:.0f} %"


def _unknown(run: Run) -> str:
    if run.source == TARGET:
        return _("Written by the model itself: no draft had it")
    return _("From {label}").format(label=style_of(run.source).label)


def _this_chat(run: Run) -> str:
    place = run.origin.place
    if place is None:
        return _("From this chat")
    if place >= 0:
        return _("From this chat, earlier in this reply")
    return _("From this chat, earlier in the conversation")


def _earlier(gone: str, there: str) -> Callable[[Run], str]:
    def where(run: Run) -> str:
        if run.gone:
            return _(gone)
        if run.there is None:
            return _("From your earlier chats")
        return _(there).format(title=run.there.title or _(UNTITLED))

    return where


def _file(run: Run) -> str:
    return (
        _("From your files: {corpus}").format(corpus=run.origin.corpus)
        if run.origin.corpus
        else _("From your files")
    )


_LIKELY = {
    (True, True): later("What this model finds likely after the same two tokens, which stand in this chat"),
    (True, False): later("What this model finds likely after the same token, which stands in this chat"),
    (False, True): later(
        "From your earlier chats: what this model found likely there after the same two tokens"
    ),
    (False, False): later("From your earlier chats: what this model found likely there after the same token"),
}
"""By whether the tokens stand in this chat, and whether they are two."""
_WHERE: dict[str, Callable[[Run], str]] = {
    "context": _this_chat,
    "history": _earlier(
        later("From an earlier reply in a chat that was deleted meanwhile"),
        later("From an earlier reply in “{title}”"),
    ),
    "self": lambda run: _("From what the model wrote for itself"),
    "prompts": _earlier(
        later("From an earlier message of yours in a chat that was deleted meanwhile"),
        later("From an earlier message of yours in “{title}”"),
    ),
    "successors": lambda run: _(_LIKELY[run.source == "context", run.origin.matched > 1]),
    "seed": lambda run: _("From the phrases that come with hierchat"),
    "corpus": _file,
}
