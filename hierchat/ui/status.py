"""Sentences for everything that takes longer than a second. Pure functions."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from hierchat.chat.frames import Frame

if TYPE_CHECKING:
    from hierchat.chat.host import HostStatus

_VERBS = {
    "downloading": "Downloading",
    "converting": "Converting",
    "loading": "Loading",
    "measuring": "Measuring the speed of",
}
_MEGABYTE = 1_000_000


def host_sentence(status: HostStatus) -> str:
    """What the model host is doing now."""
    if status.phase == "ready":
        return f"{status.name} is ready."
    if status.phase == "failed":
        return status.message or f"{status.name} could not be loaded."
    verb = _VERBS.get(status.phase)
    if verb is None:
        return "No model is loaded."
    if not status.total:
        return f"{verb} {status.name}…"
    if status.phase == "downloading":
        done, total = status.done / _MEGABYTE, status.total / _MEGABYTE
        return f"{verb} {status.name}: {done:,.0f} of {total:,.0f} MB"
    return f"{verb} {status.name}: {status.done:,} of {status.total:,}"


def host_line(status: HostStatus) -> str:
    """The same as HTML with a bar of progress; empty once the model that was asked for is ready."""
    if status.phase == "ready":
        return error(status.message) if status.message else ""
    sentence = html.escape(host_sentence(status))
    if status.phase == "failed":
        return f'<div class="hc-error" role="alert">{sentence}</div>'
    return f'<div class="hc-wait" role="status">{sentence}{progress_bar(status.done, status.total)}</div>'


def progress_bar(done: int, total: int | None) -> str:
    """A thin bar; nothing where the total is unknown."""
    if not total:
        return ""
    return f'<progress value="{min(done, total)}" max="{total}"></progress>'


def place_sentence(ahead: int) -> str:
    """The place in the line for the engine."""
    return "Waiting for one other reply." if ahead == 1 else f"Waiting: {ahead} replies are before yours."


def frame_line(frame: Frame) -> str:
    """What a reply without text so far is waiting for, as HTML; empty once it is being written."""
    if frame.phase == "waiting":
        return f'<div class="hc-wait" role="status">{html.escape(frame.notice or "Waiting for the model…")}</div>'
    if frame.phase == "reading":
        if not frame.prompt_tokens:
            return '<div class="hc-wait" role="status">Reading the prompt…</div>'
        return (
            '<div class="hc-wait" role="status">'
            f"Reading the prompt: {frame.prompt_read:,} of {frame.prompt_tokens:,} tokens"
            f"{progress_bar(frame.prompt_read, frame.prompt_tokens)}</div>"
        )
    return ""


def waiting(sentence: str) -> str:
    """A wait as HTML."""
    return f'<div class="hc-wait" role="status">{html.escape(sentence)}</div>'


def notice(sentence: str) -> str:
    """A remark as HTML."""
    return f'<div class="hc-notice" role="status">{html.escape(sentence)}</div>'


def error(sentence: str) -> str:
    """An error as HTML, read out by screen readers."""
    return f'<div class="hc-error" role="alert">{html.escape(sentence)}</div>'


def context_line(frame: Frame) -> str:
    """How full the context window is."""
    if not frame.context_limit:
        return ""
    return f"context {frame.context_tokens:,} / {frame.context_limit:,}"
