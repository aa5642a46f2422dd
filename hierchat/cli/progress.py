"""A loading model in the terminal: a line for each phase beside the page, one line in place before a reply."""

from __future__ import annotations

import sys
import threading
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO

from hierchat.chat.settings import host_sentence

if TYPE_CHECKING:
    from hierchat.runtime.slot import ModelHost

_POLL_SECONDS = 0.25
_CLEAR = "\r\033[K"


def follow(host: ModelHost, out: TextIO | None = None) -> threading.Thread:
    """Prints what the host does until its model is ready or has failed, from a thread of its own."""
    thread = threading.Thread(target=_follow, args=(host, out or sys.stderr), name="terminal", daemon=True)
    thread.start()
    return thread


def wait(host: ModelHost, out: TextIO) -> None:
    """Until its model is ready or has failed. On a terminal what it does stands on a line, which is cleared in the
    end; elsewhere nothing is written."""
    watched, last = out.isatty(), ""
    try:
        while (status := host.status).phase not in ("ready", "failed"):
            sentence = host_sentence(status)
            if watched and sentence != last:
                out.write(_CLEAR + sentence[: get_terminal_size().columns - 1])  # one line, to be cleared
                out.flush()
                last = sentence
            time.sleep(_POLL_SECONDS / 5)
    finally:
        if last:
            out.write(_CLEAR)
            out.flush()


def _follow(host: ModelHost, out: TextIO) -> None:
    watched, last, phase = out.isatty(), "", ""
    while True:
        status = host.status
        sentence = host_sentence(status)
        if sentence != last and (watched or status.phase != phase):
            # Into a file or a pipe goes one line a phase; on a terminal the line counts up in place.
            in_place = watched and status.phase == phase
            lead = _CLEAR if in_place else "\n" if watched and phase else ""
            out.write(lead + sentence + ("" if watched else "\n"))
            out.flush()
            last, phase = sentence, status.phase
        if status.phase in ("ready", "failed"):
            out.write("\n" if watched else "")
            out.flush()
            return
        time.sleep(_POLL_SECONDS)
