"""Show in the terminal: a reply while it is written, its figures and sources, and a model that loads."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from hierchat.chat import wording
from hierchat.chat.frames import Figures, Frame
from hierchat.chat.tool_calls import HoldBack
from hierchat.language import error_words
from hierchat.reasoning import split_reasoning

if TYPE_CHECKING:
    from hierchat.runtime.model_slot import ModelSlot

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""Parses HTML as text, which rich would leave out."""
_FREE_ROWS = 2
"""Rows of the terminal that a growing reply does not use."""
_REST = 9.0
"""Time without drawing after each drawing, as a multiple of its duration, so that the model has nine tenths."""


class PlainScreen:
    """Writes a reply's text as the model writes it, without drawing Markdown."""

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


class MarkdownScreen:
    """Draws the last rows of a growing reply in place, and prints the whole reply when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._text = ""
        self._rests_until = 0.0

    def show(self, frame: Frame) -> None:
        if frame.phase in ("waiting", "reading"):
            self._draw(Text(_wait(frame), style="dim"))
            return
        self._text = frame.text
        if (began := time.monotonic()) >= self._rests_until:
            self._draw(_Tail(_markdown(self._text)))
            now = time.monotonic()
            self._rests_until = now + _REST * (now - began)

    def end(self) -> None:
        if self._live is not None:
            self._draw(Text(""))
            self._live.stop()
        if self._text.strip():
            self._console.print(_markdown(self._text))
        self._live, self._text, self._rests_until = None, "", 0.0

    def _draw(self, drawn: "Text | _Tail") -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stderr=False
            )
            self._live.start()
        self._live.update(drawn, refresh=True)


TerminalScreen = PlainScreen | MarkdownScreen


def _markdown(text: str) -> Markdown:
    parts = split_reasoning(text)
    quoted = "".join(f"> {line}\n" for line in parts.thought.split("\n")) + "\n" if parts.thought else ""
    drawn = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    drawn.parsed = _PARSER.parse(printable(quoted + parts.answer))
    return drawn


class _Tail:
    """Draws the last rows of a reply that fit the terminal."""

    def __init__(self, drawn: Markdown) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._drawn, options.update(height=None), pad=False)
        for row in rows[-max(console.height - _FREE_ROWS, 1) :]:
            yield from row
            yield Segment.line()


def say(notes: Console, sentence: str) -> None:
    """Print a message of the program, no reply. Like a reply, it cannot steer the terminal, whatever it holds."""
    notes.print(printable(error_words(sentence)), style="dim", markup=False, highlight=False)


def printable(text: str) -> str:
    """Return a text without control characters, so that nothing that a model writes can steer the terminal."""
    return "".join(one for one in text if one in "\n\t" or 0x20 <= ord(one) < 0x7F or ord(one) >= 0xA0)


def _wait(frame: Frame) -> str:
    if frame.phase == "reading" and frame.prompt_tokens:
        return f"Reading the prompt: {frame.prompt_read:,} of {frame.prompt_tokens:,} tokens"
    if frame.ahead:
        return "Waiting for one other reply." if frame.ahead == 1 else f"{frame.ahead} replies come before."
    return "…"


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


# A model that loads: a line for each phase beside the page, one line in place before a reply
_POLL_SECONDS = 0.25
_CLEAR = "\r\033[K"


def follow_loading(slot: "ModelSlot") -> None:
    """Print the phases of loading a model until it is ready or has failed, from a thread of its own."""

    def print_phases() -> None:
        watched, last, phase = sys.stderr.isatty(), "", ""
        while True:
            status = slot.status
            sentence = wording.slot_sentence(status)
            if sentence != last and (watched or status.phase != phase):
                # Into a file or a pipe goes one line a phase; on a terminal the line counts up in place.
                in_place = watched and status.phase == phase
                lead = _CLEAR if in_place else "\n" if watched and phase else ""
                sys.stderr.write(lead + sentence + ("" if watched else "\n"))
                sys.stderr.flush()
                last, phase = sentence, status.phase
            if status.phase in ("ready", "failed"):
                sys.stderr.write("\n" if watched else "")
                sys.stderr.flush()
                return
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=print_phases, name="terminal", daemon=True).start()


def wait_for_model(slot: "ModelSlot") -> None:
    """Wait until the slot's model is ready or has failed. A terminal shows how far it is meanwhile."""
    with Console(stderr=True).status("") as line:
        while (status := slot.status).phase not in ("ready", "failed"):
            line.update(Text(wording.slot_sentence(status)))
            time.sleep(_POLL_SECONDS / 5)
