"""A reply on standard output while it is written: as Markdown on a terminal, as it is elsewhere, or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from hierchat.chat.frames import Frame
from hierchat.terminal.markdown import Markdown, finished
from hierchat.thoughts import parted

_LEFT = 2
"""Rows of the terminal that a growing reply leaves free."""
_REST = 9.0
"""After drawing, so many times as long nothing is drawn: at least nine tenths of the time are the model's."""
_THEME = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"})
"""Colours that can be read on a light terminal and on a dark one."""


def console(*, notes: bool = False, plain: bool = False) -> Console:
    """Standard output; `notes`: standard error, for all that is no reply; `plain`: as if it were no terminal."""
    return Console(stderr=notes, theme=_THEME, force_terminal=False if plain else None)


class Screen(Protocol):
    """Of one reply after the other."""

    def show(self, frame: Frame) -> None:
        """Its state by now."""
        ...

    def end(self) -> None:
        """Nothing more comes of this reply."""
        ...


class Nothing:
    """For who wants the whole at the end."""

    def show(self, frame: Frame) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Plain:
    """The text as the model writes it, piece by piece."""

    def __init__(self, out: TextIO, stop: Iterable[str] = ()) -> None:
        """`stop`: strings that end the reply; what may be the beginning of one is held back."""
        self._out = out
        self._held = max((len(string) for string in stop), default=1) - 1
        self._watched = out.isatty()
        self._shown = 0
        self._last = ""

    def show(self, frame: Frame) -> None:
        text = frame.text
        ready = len(text) if frame.phase == "done" else len(text) - self._held
        if ready > self._shown:
            piece = text[self._shown : ready]
            self._out.write(printable(piece) if self._watched else piece)
            self._out.flush()
            self._shown, self._last = ready, piece[-1]

    def end(self) -> None:
        if self._last not in ("", "\n"):
            self._out.write("\n")
        self._out.flush()
        self._shown, self._last = 0, ""


class Rendered:
    """Markdown. Parts that nothing can change any more are printed for good; the last one is drawn anew as it grows,
    its end where it is longer than the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._begin()

    def _begin(self) -> None:
        self._text = ""
        self._printed = 0
        """Characters that are printed for good."""
        self._apart = False
        """Whether a blank line comes before what is printed next."""
        self._rests_until = 0.0

    def show(self, frame: Frame) -> None:
        if frame.phase in ("waiting", "reading"):
            self._draw(Text(_wait(frame), style="dim"))
            return
        self._text = printable(_quoted(frame.text))
        if (began := time.monotonic()) < self._rests_until:
            return
        if ready := finished(self._text[self._printed :]):
            self._print(self._text[self._printed : self._printed + ready])
            self._printed += ready
        self._draw(_End(Markdown(self._text[self._printed :]), apart=self._apart))
        now = time.monotonic()
        self._rests_until = now + _REST * (now - began)

    def end(self) -> None:
        if self._live is not None:
            self._draw(Text(""))
            self._live.stop()
            self._live = None
        self._print(self._text[self._printed :])
        self._begin()

    def _print(self, part: str) -> None:
        if part.strip():
            if self._apart:
                self._console.print()
            self._console.print(Markdown(part))
            self._apart = True

    def _draw(self, drawn: Text | _End) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stderr=False
            )
            self._live.start()
        self._live.update(drawn, refresh=True)


def _quoted(text: str) -> str:
    """Markdown in which a thought is quoted above the answer."""
    parts = parted(text)
    if not parts.thought:
        return parts.answer
    lines = "\n".join(f"> {line}".rstrip() for line in parts.thought.split("\n"))
    return f"{lines}\n\n{parts.answer}"


class _End:
    """As many of its last rows as the terminal has room for."""

    def __init__(self, drawn: Markdown, *, apart: bool) -> None:
        self._drawn = drawn
        self._apart = apart

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._drawn, options.update(height=None), pad=False)
        if self._apart and rows:
            rows = [[], *rows]
        for row in rows[-max(console.height - _LEFT, 1) :]:
            yield from row
            yield Segment.line()


def say(notes: Console, sentence: str) -> None:
    """A sentence that is no reply. What a server or a title holds steers the terminal as little as a reply."""
    notes.print(printable(sentence), style="dim", markup=False, highlight=False)


def printable(text: str) -> str:
    """Without control characters: nothing that a model writes can steer the terminal."""
    return "".join(one for one in text if one in "\n\t" or not _steers(one))


def _steers(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0


def _wait(frame: Frame) -> str:
    if frame.phase == "reading" and frame.prompt_tokens:
        return f"Reading the prompt: {frame.prompt_read:,} of {frame.prompt_tokens:,} tokens"
    if frame.ahead:
        return "Waiting for one other reply." if frame.ahead == 1 else f"{frame.ahead} replies come before."
    return "…"
