"""Show in the terminal: a reply while it is written, its figures and sources, and a model that loads."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from hierchat.chat import wording
from hierchat.chat.frames import Figures, Frame
from hierchat.chat.tool_calls import HoldBack
from hierchat.language import error_words

if TYPE_CHECKING:
    from hierchat.runtime.model_slot import ModelSlot


class TerminalScreen:
    """Writes a reply's text as the model writes it."""

    def __init__(self, out: TextIO, stop: Sequence[str] = ()) -> None:
        """`stop`: strings that end the reply. Text that may be the beginning of one is not written yet."""
        self._out, self._stop = out, stop
        self._growing = HoldBack(stop)

    def show(self, frame: Frame) -> None:
        """Write the reply's text up to this frame."""
        if piece := self._growing.more(frame.text, done=frame.phase == "done"):
            self._out.write(printable(piece) if self._out.isatty() else piece)
            self._out.flush()

    def end(self) -> None:
        if self._growing.sent[-1:] not in ("", "\n"):
            self._out.write("\n")
        self._out.flush()
        self._growing = HoldBack(self._stop)


def say(notes: Console, sentence: str) -> None:
    """Print a message of the program, no reply. Like a reply, it cannot steer the terminal, whatever it holds."""
    notes.print(printable(error_words(sentence)), style="dim", markup=False, highlight=False)


def printable(text: str) -> str:
    """Return a text without control characters, so that nothing that a model writes can steer the terminal."""
    return "".join(one for one in text if one in "\n\t" or 0x20 <= ord(one) < 0x7F or ord(one) >= 0xA0)


# What was measured of a reply: a line for the eye, a record for programs.
_ENDS = {
    "loop": "ended: it had come to repeat itself",
    "length": "cut at the longest reply allowed",
    "context": "cut: the context window is full",
    "stopped": "stopped",
    "error": "broken off",
}
_RECORD = (
    "tokens", "seconds", "total_seconds", "waited_seconds", "first_token_seconds", "tokens_per_second",
    "tokens_per_forward", "forwards", "acceptance_rate", "baseline_tokens_per_second", "baseline",
    "prompt_tokens", "prompt_read", "read_seconds", "seed", "stop_string",
)  # fmt: skip


def figures_line(figures: Figures) -> str:
    """Return the line of figures below a reply: speed, tokens and seconds, and where the words came from."""
    parts = [wording.speed_words(figures), *wording.time_words(figures)]
    if sources := [words for _source, words in wording.share_words(figures.shares)]:
        parts.append(", ".join(sources))
    parts.append(_ENDS.get(figures.finish or "", ""))
    return " · ".join(filter(None, parts))


def record(frame: Frame, model: str, chat: int | None) -> dict[str, Any]:
    """Return a reply as a JSON object. `chat`: its number in the store. Times are seconds; null: not measured."""
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


# While a model loads, `serve` prints a line for each phase; the chat in the terminal redraws one line
_POLL_SECONDS = 0.25


def follow_loading(slot: "ModelSlot") -> None:
    """Print the phases of loading a model until it is ready or has failed, from a thread of its own."""

    def print_phases() -> None:
        phase = ""
        while phase not in ("ready", "failed"):
            status = slot.status
            if status.phase != phase:
                phase = status.phase
                print(wording.slot_sentence(status), file=sys.stderr, flush=True)
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=print_phases, name="terminal", daemon=True).start()


def wait_for_model(slot: "ModelSlot") -> None:
    """Wait until the slot's model is ready or has failed. A terminal shows how far it is meanwhile."""
    with Console(stderr=True).status("") as line:
        while (status := slot.status).phase not in ("ready", "failed"):
            line.update(Text(wording.slot_sentence(status)))
            time.sleep(_POLL_SECONDS / 5)
