"""Show in the terminal: a reply while it is written, its figures and sources, and a model that loads."""

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from hierchat.chat import wording
from hierchat.chat.frames import Figures, Frame
from hierchat.language import error_words
from hierchat.reasoning import split_reasoning

if TYPE_CHECKING:
    from hierchat.runtime.model_slot import ModelSlot

# Markdown in the terminal, part by part.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""What looks like HTML is text: rich would leave it out."""


class _Heading(markdown.Heading):
    """Draws a Markdown heading at the left, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(markdown.CodeBlock):
    """Draws a code block without a margin, so that copied code stands as it was written."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True)


class _Drawn(markdown.Markdown):
    elements: ClassVar = markdown.Markdown.elements | {
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = tokens


class Markdown:
    """Draws each block of Markdown by itself, with a blank row between, as when they come one by one.
    Addresses are shown beside their links, code in the terminal's own colours."""

    def __init__(self, text: str) -> None:
        self._parts = [_Drawn(tokens) for tokens in _blocks(_PARSER.parse(text))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for at, part in enumerate(self._parts):
            if at:
                yield Segment.line()
            drawn = console.render_lines(part, options.update(height=None), pad=False)
            rows = [_trimmed(row) for row in drawn]
            filled = [at for at, row in enumerate(rows) if row]
            for row in rows[filled[0] : filled[-1] + 1] if filled else []:
                yield from row
                yield Segment.line()


def _blocks(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split Markdown's tokens into those of each block: paragraph, list, table and so on."""
    blocks: list[list[Token]] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def _trimmed(row: Sequence[Segment]) -> list[Segment]:
    """Return a row without the blanks with which rich fills it: copied text should not hold them."""
    kept = list(row)
    while kept and not kept[-1].text.strip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []


def finished(text: str) -> int:
    """Count the characters at the text's beginning that are whole blocks, which no text to come can change.

    The last part can grow; the one before it can, too, until the first line of the last one is whole."""
    lines = text.split("\n")
    begins = [block[0].map[0] for block in _blocks(_PARSER.parse(text)) if block[0].map]
    whole = [line for line in begins if line < len(lines) - 1]
    return sum(len(line) + 1 for line in lines[: whole[-1]]) if whole else 0


_LEFT = 2
"""Rows of the terminal that a growing reply leaves free."""
_REST = 9.0
"""After drawing, so many times as long nothing is drawn: at least nine tenths of the time are the model's."""
_THEME = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"})
"""Colours that can be read on a light terminal and on a dark one."""


def console(*, notes: bool = False, plain: bool = False) -> Console:
    """Open a rich console. `notes`: on standard error, for all but replies; `plain`: as if it were no terminal."""
    return Console(stderr=notes, theme=_THEME, force_terminal=False if plain else None)


class Screen(Protocol):
    """Shows replies in the terminal, one after the other."""

    def show(self, frame: Frame) -> None:
        """Show the reply's text up to this frame."""

    def end(self) -> None:
        """End the reply's display: nothing more comes."""


class PlainScreen:
    """Writes a reply's text as the model writes it, without drawing Markdown."""

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


class MarkdownScreen:
    """Draws a reply as Markdown: blocks that cannot change are printed for good, the last one is drawn anew
    as it grows, only its end if it is longer than the terminal."""

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
        self._draw(_Tail(Markdown(self._text[self._printed :]), apart=self._apart))
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

    def _draw(self, drawn: "Text | _Tail") -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stderr=False
            )
            self._live.start()
        self._live.update(drawn, refresh=True)


def _quoted(text: str) -> str:
    """Return Markdown in which a thought is quoted above the answer."""
    parts = split_reasoning(text)
    if not parts.thought:
        return parts.answer
    lines = "\n".join(f"> {line}".rstrip() for line in parts.thought.split("\n"))
    return f"{lines}\n\n{parts.answer}"


class _Tail:
    """Draws the last rows of a block, as many as fit the terminal."""

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


def wait_for_model(slot: "ModelSlot", out: TextIO) -> None:
    """Wait until the slot's model is ready or has failed.

    On a terminal what it does stands on a line, which is cleared in the end; elsewhere nothing is written."""
    watched, last = out.isatty(), ""
    try:
        while (status := slot.status).phase not in ("ready", "failed"):
            sentence = wording.slot_sentence(status)
            if watched and sentence != last:
                out.write(_CLEAR + sentence[: get_terminal_size().columns - 1])  # one line, to be cleared
                out.flush()
                last = sentence
            time.sleep(_POLL_SECONDS / 5)
    finally:
        if last:
            out.write(_CLEAR)
            out.flush()
