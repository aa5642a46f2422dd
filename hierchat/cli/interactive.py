"""Run the chat in the terminal: read questions and commands until the user leaves, and show the replies."""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import TextIOWrapper
from threading import Event
from types import FrameType

from rich.console import Console

from hierchat import logs, shutdown
from hierchat.chat.frames import Frame
from hierchat.cli.chat import ChatFlags
from hierchat.cli.options import CommandError
from hierchat.cli.screen import (
    MarkdownScreen,
    PlainScreen,
    Screen,
    console,
    figures_line,
    record,
    say,
)
from hierchat.cli.talk import Talk, open_talk
from hierchat.store.records import Attachment
from hierchat.texts.attachments import MOST_BYTES, read

try:
    import readline
except ImportError:  # Windows
    readline = None  # type: ignore[assignment]

FIRST, MORE = "> ", ". "
_AGAIN_SECONDS = 0.05


def answer(talk: Talk, text: str, files: Sequence[Attachment], screen: Screen | None) -> Frame:
    """Ask a question, show the reply as it comes, until Ctrl-C, and return its last frame ("waiting" if none began).
    Raises what keeps it from beginning, BrokenPipeError where nobody reads any more, and Ended where the program is to
    end: what came is kept, and so is the question."""
    stop, last = Event(), Frame("waiting")
    with shutdown.stopped_by_signals(stop):
        try:
            with closing(talk.ask(text, files, stop)) as frames:
                for last in frames:
                    if screen:
                        screen.show(last)
        finally:
            if screen:
                screen.end()
            if not shutdown.is_wanted():
                talk.take_back()
    return last


class Lines:
    """Reads messages from the terminal, with line editing where there is readline."""

    def __init__(self, earlier: Sequence[str], complete: Callable[[str], list[str]]) -> None:
        """`earlier`: oldest first, nothing of it is written to a file; `complete`: what a line may become."""
        self._typed = ""
        """What stood in the line that Ctrl-C ended."""
        if readline is not None:
            for line in earlier:
                readline.add_history(line)
            readline.set_completer_delims("")
            readline.set_completer(lambda text, state: dict(enumerate(complete(text))).get(state))
            edit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if edit else "tab: complete")

    def read(self) -> str | None:
        r"""Return the next message; None if the user leaves. A line that ends with \ goes on in the next one.

        Ctrl-C takes back what was typed; where nothing was, it leaves, as Ctrl-D does.
        """
        parts: list[str] = []
        while True:
            try:
                line = self._line(MORE if parts else FIRST)
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                if not parts and not self._typed:
                    return None
                parts = []
                continue
            if line.endswith("\\"):
                parts.append(line[:-1])
                continue
            return "\n".join([*parts, line])

    def _line(self, prompt: str) -> str:
        """Read one line behind a prompt. Raises EOFError, KeyboardInterrupt."""
        self._typed = ""
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            if sys.stdout.isatty():
                with _signals_heard():
                    return input(prompt)
            sys.stderr.write(prompt)  # standard output is for replies
            sys.stderr.flush()
            return input()
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if readline is not None:  # which forgets it before the exception arrives
            self._typed = readline.get_line_buffer()
        raise KeyboardInterrupt


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Let any signal end the reading of a line at once. Python's readline looks for signals, then waits for a
    key: it would notice one that came between the two at the next key only. Another signal ends that wait."""
    if readline is None or not hasattr(signal, "SIGWINCH"):
        yield
        return
    reader = threading.get_ident()
    ours, pythons = socket.socketpair()
    over = threading.Event()

    def wake() -> None:
        if ours.recv(1):
            while not over.wait(_AGAIN_SECONDS):
                signal.pthread_kill(reader, signal.SIGWINCH)  # readline draws the line anew, no more

    pythons.setblocking(False)
    before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wake, name="signals at the prompt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        with suppress(OSError):
            pythons.close()
        thread.join()
        ours.close()


class Interactive:
    """Runs the loop of the terminal's chat, and its commands such as /new."""

    def __init__(self, talk: Talk, screen: Screen, notes: Console) -> None:
        """`screen` shows replies, `notes` everything else."""
        self._talk = talk
        self._screen = screen
        self._notes = notes
        self._goes_on = True
        self._commands: dict[str, tuple[Callable[[str], None], str, str]] = {
            "/new": (self._new, "", "begin another chat"),
            "/model": (self._model, "[NAME]", "let another model answer, or show which there are"),
            "/help": (self._help, "", "this list"),
            "/exit": (self._exit, "", "leave; Ctrl-D does, too"),
        }

    def run(self, lines: Lines) -> None:
        """Read lines and answer them until the user leaves. Raises BrokenPipeError if nobody reads any more."""
        while self._goes_on and (text := lines.read()) is not None:
            word, _, rest = text.strip().partition(" ")
            if not word:
                continue
            try:
                if word in self._commands:
                    self._commands[word][0](rest.strip())
                elif word.startswith("/") and word[1:].isalpha():
                    self._say(f"{word} is no command. /help lists them.")
                else:
                    self._ask(text)
                self._notes.print()
            except BrokenPipeError:
                raise
            except Exception as error:
                self._say(logs.error_message(error, here=True))

    def completions(self, typed: str) -> list[str]:
        """Return the commands and models that complete what was typed."""
        if not typed.startswith("/"):
            return []
        found = [f"{name} " if takes else name for name, (_, takes, _) in self._commands.items()]
        if typed.startswith("/model "):
            found = [f"/model {name}" for name in self._talk.model.names()]
        return [line for line in found if line.startswith(typed)]

    def _ask(self, text: str) -> None:
        last = answer(self._talk, text, (), self._screen)
        if last.phase == "waiting":
            self._say("Stopped before it began: nothing was asked.")
        if last.notice:
            self._say(last.notice)
        if line := figures_line(last.figures):
            self._say(line)

    def _say(self, sentence: str) -> None:
        say(self._notes, sentence)

    def _new(self, rest: str) -> None:
        self._talk.new()
        self._say("A new chat.")

    def _model(self, name: str) -> None:
        model = self._talk.model
        if name:
            model.choose(name)
            self._say(f"{model.name} answers from now on.")
            return
        for one in model.names():
            note = model.about(one)
            self._say(f"{'*' if one == model.name else ' '} {one}{f'  ({note})' if note else ''}")

    def _help(self, rest: str) -> None:
        for name, (_, takes, does) in self._commands.items():
            self._say(f"{f'{name} {takes}':<18} {does}")
        self._say(r"A line that ends with \ goes on in the next one. Ctrl-C stops a reply.")

    def _exit(self, rest: str) -> None:
        self._goes_on = False


# From the flags to one answer, or to the loop
INTERRUPTED, BROKEN_PIPE = 130, 141
"""As a shell counts a program that a signal ended."""
_EARLIER = 100
"""Earlier messages that can be taken up again."""


def run(flags: ChatFlags) -> int:
    """Run `hierchat chat`: answer once, or until the user leaves, and return the exit code."""
    text, files = _question(" ".join(flags.message))
    if not text and not files and flags.json:
        raise CommandError("--json is for one answer. Give a message, or pipe one in.")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what the terminal cannot show
    try:
        with open_talk(flags) as talk:
            if text or files:
                return _one(talk, text, files, flags)
            return _many(talk, flags)
    except BrokenPipeError:
        # Who reads has gone. Python would say so once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _question(message: str) -> tuple[str, Sequence[Attachment]]:
    """Return the message and its files: piped text is the message if there is none, and else goes with it as
    a file. Raises Unreadable, and CommandError if nothing was piped in and there is no message."""
    if sys.stdin is not None and sys.stdin.isatty():
        return message, ()
    raw = sys.stdin.buffer.read(MOST_BYTES + 1) if sys.stdin is not None else b""
    if not raw.strip():
        if not message.strip():
            raise CommandError(
                "Nothing was asked: standard input is empty. Give a message behind `hierchat chat`."
            )
        return message, ()
    piped = read("stdin", raw)
    return (message, (piped,)) if message.strip() else (piped.text.strip(), ())


def _one(talk: Talk, text: str, files: Sequence[Attachment], flags: ChatFlags) -> int:
    notes = console(notes=True, plain=flags.plain)
    last = answer(talk, text, files, None if flags.json else _screen(talk, flags.plain))
    if last.phase == "waiting":
        return INTERRUPTED
    if flags.json:
        print(
            json.dumps(
                record(last, talk.model.name, None if flags.no_history else talk.number), ensure_ascii=False
            )
        )
    else:
        for sentence in (last.notice, figures_line(last.figures)):
            if sentence:
                say(notes, sentence)
    return {"stopped": INTERRUPTED, "error": 1}.get(last.finish or "", 0)


def _many(talk: Talk, flags: ChatFlags) -> int:
    notes = console(notes=True, plain=flags.plain)
    chat = talk.chat()
    about = f" · going on with “{chat.title}”" if chat else " · nothing is kept" if flags.no_history else ""
    say(
        notes,
        f"{talk.model.name}{talk.model.place}{about} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves",
    )
    loop = Interactive(talk, _screen(talk, flags.plain), notes)
    loop.run(Lines([] if flags.no_history else talk.kept.earlier(_EARLIER), loop.completions))
    return 0


def _screen(talk: Talk, plain: bool) -> Screen:
    out = console()
    if plain or not out.is_terminal or out.is_dumb_terminal:
        return PlainScreen(sys.stdout, talk.settings.sampling.get("stop") or ())
    return MarkdownScreen(out)
