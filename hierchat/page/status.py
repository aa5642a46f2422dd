"""Sentences for everything that takes longer than a second. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hierchat.chat.frames import Frame
from hierchat.chat.wording import SAME_WORDS, UP_TO_TIES, slot_sentence
from hierchat.language import _, error_words, later, plural
from hierchat.models.runnable import NO_DRAFTS
from hierchat.page.buttons import button
from hierchat.runtime.model_slot import CANCELLABLE

if TYPE_CHECKING:
    from hierchat.runtime.model_slot import SlotStatus

LATER = later("A reply is still being written in this chat. Do this when it has ended, or stop it first.")
_PROVED = later(
    "The model computes a token from the same bits whatever drafts stand beside it, so drafts cannot change a word; "
    "tested on this machine at start."
)
_NOT_PROVED = later(
    "On this machine the last bits of a token's score depend on the drafts beside it: where two tokens are almost "
    "equally likely, a reply with drafts may take the other one."
)
_RESAMPLES = later(
    "With drafts and without: the same words at temperature 0. Above it each word is as likely as without drafts, but "
    "it need not be the same one."
)
_UNPADDED = later("The plain side runs without padding, at its fastest, where last bits may differ.")


def slot_line(status: SlotStatus) -> str:
    """Draw what the model slot does, with its progress or a way out of the wait; empty once the model is ready."""
    if status.phase == "ready":
        name = html.escape(status.name)
        said = "" if status.drafts else f'<div class="hc-quiet">{name}: {undrafted(status)}</div>'
        close = button("hc_model_heard", _("Close"), css="hc-bordered")
        trouble = (
            f'<div class="hc-error" role="alert">{html.escape(error_words(status.message))} {close}</div>'
        )
        return (trouble if status.message else "") + said
    sentence = html.escape(slot_sentence(status))
    if status.phase == "failed":
        return f'<div class="hc-error" role="alert">{sentence}</div>'
    if status.phase in CANCELLABLE:
        cancel = button("hc_model_cancel", _("Cancel"), css="hc-bordered")
        return f'<div class="hc-wait" role="status">{sentence} {cancel}</div>'
    role = "" if status.total else ' role="status"'  # a counter would be read out at every step
    return f'<div class="hc-wait"{role}>{sentence}{progress_bar(status.done, status.total)}</div>'


def proof_line(exact: bool | None, identical: bool = True) -> str:
    """Say what the self-test found about drafts, as HTML. `identical`: a comparison found no difference."""
    if exact is None:
        return ""
    said, why = (_(SAME_WORDS), _(_PROVED)) if exact else (_(UP_TO_TIES), _(_NOT_PROVED))
    if exact and not identical:
        said = _("where both are computed alike, {same}").format(same=said)
        why = f"{why} {_(_UNPADDED)}"
    why = html.escape(why)
    return f'<span class="hc-proof" tabindex="0" role="note" aria-label="{said}. {why}" data-said="{why}">{said}</span>'


def model_proof(status: SlotStatus) -> str:
    """Say what the self-test of the model that is ready found, as HTML."""
    if status.phase == "ready" and not status.drafts:
        return f'<div class="hc-quiet">{_(NO_DRAFTS)}</div>'
    if status.phase == "ready" and status.resamples:
        return f'<div class="hc-quiet">{_(_RESAMPLES)}</div>'
    line = proof_line(status.exact) if status.phase == "ready" else ""
    return line and f'<div class="hc-quiet">{_("With drafts and without:")} {line}</div>'


def undrafted(status: SlotStatus) -> str:
    """Why the model that is ready writes without drafts; empty where they are possible."""
    return "" if status.drafts else _(NO_DRAFTS).rstrip(".")


def progress_bar(done: int, total: int | None) -> str:
    """A thin bar; nothing where the total is unknown."""
    if not total:
        return ""
    return f'<progress aria-label="{_("Progress")}" value="{min(done, total)}" max="{total}"></progress>'


def waiting_line(ahead: int, present: SlotStatus, *, loaded: bool) -> str:
    """Say what a reply waits for before its turn, as HTML: other replies, then the model."""
    if not ahead and not loaded and (line := slot_line(present)):
        return line
    if ahead:
        return waiting(
            plural("Waiting for one other reply.", "Waiting: {n} replies are before yours.", ahead)
        )
    return waiting(_("Waiting for the model…"))


def reading_line(frame: Frame) -> str:
    """Say how much of the prompt is read, as HTML."""
    read, total = frame.prompt_read, frame.prompt_tokens
    if not total:
        return waiting(_("Reading the prompt…"))
    said = _("Reading the prompt: {read:,} of {total:,} tokens").format(read=read, total=total)
    # No role: the counter would be read out at every step.
    return f'<div class="hc-wait">{said}{progress_bar(read, total)}</div>'


def waiting(sentence: str) -> str:
    """A wait as HTML."""
    return f'<div class="hc-wait" role="status">{html.escape(sentence)}</div>'


def notice(sentence: str, act: str = "") -> str:
    """A remark as HTML. `act`: a button behind it, as HTML."""
    words = html.escape(error_words(sentence))
    return f'<div class="hc-notice" role="status">{words}{act and f" {act}"}</div>'


def error(sentence: str) -> str:
    """An error as HTML, read out by screen readers."""
    return f'<div class="hc-error" role="alert">{html.escape(error_words(sentence))}</div>'


def closable(sentence: str) -> str:
    """A remark or an error, as HTML, with the button that takes it away."""
    close = button("hc_dismiss", _("Close"), css="hc-icon hc-close", title=_("Close"))
    return f'<div class="hc-closable">{sentence}{close}</div>'


def stale(sentence: str) -> str:
    """The page has to be loaded again: its script does it, and keeps what was typed."""
    return f'<div class="hc-error" role="alert" data-reload>{html.escape(sentence)} {_("It is loaded again…")}</div>'


def count_line(tokens: int, limit: int, most: int) -> str:
    """Say how long the message in the box is, as HTML; it was counted up to `most` tokens."""
    if tokens > most:
        said = _("Your message: more than {tokens:,} tokens, too many for the {limit:,} that fit")
        return f'<div class="hc-count hc-over">{said.format(tokens=most, limit=limit)}</div>'
    said = _("Your message: {tokens:,} of {limit:,} tokens").format(tokens=tokens, limit=limit)
    over = _(": {n:,} too many").format(n=tokens - limit) if tokens > limit else ""
    return f'<div class="hc-count{" hc-over" if over else ""}">{said}{over}</div>'


def context_line(frame: Frame) -> str:
    """Say how much of the context window is in use."""
    if not frame.context_limit:
        return ""
    return _("Memory of this chat: {tokens:,} of {limit:,} tokens").format(
        tokens=frame.context_tokens, limit=frame.context_limit
    )


def facts(rows: Iterable[tuple[str, str]], css: str = "hc-facts") -> str:
    """Draw names and values, both as HTML, in two columns."""
    cells = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<dl class="{css}">{cells}</dl>'


def confirmation(label: str, question: str, answers: str) -> str:
    """Draw a question before something goes for good, and the buttons that answer it; all as HTML."""
    return f'<div class="hc-ask-remove" role="group" aria-label="{label}"><p>{question}</p>{answers}</div>'


def folded(title: str, lines: Sequence[str], count: int, most: int) -> str:
    """Draw a list that unfolds: at most so many lines of `count` that there are; nothing where there are none."""
    if not count:
        return ""
    named = "".join(f"<li>{html.escape(error_words(line))}</li>" for line in lines[:most])
    more = count - min(len(lines), most)
    named += f"<li>{_('and {n:,} more').format(n=more)}</li>" if more else ""
    return f"<details><summary>{title}</summary><ul>{named}</ul></details>"
