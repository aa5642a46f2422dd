"""The terminal's view of a loading model: a line for each phase, with its progress where a person watches."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from hierchat.ui.status import host_sentence

if TYPE_CHECKING:
    from hierchat.runtime.host import ModelHost

_POLL_SECONDS = 0.25
_CLEAR = "\r\033[K"


def follow(host: ModelHost, out: TextIO | None = None) -> threading.Thread:
    """Prints what the host does until its model is ready or has failed, from a thread of its own."""
    thread = threading.Thread(target=_follow, args=(host, out or sys.stderr), name="terminal", daemon=True)
    thread.start()
    return thread


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
