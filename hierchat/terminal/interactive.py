"""`hierchat chat` without a message: questions and commands until the user leaves."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from hierchat import logs
from hierchat.store import StoreError
from hierchat.terminal import values
from hierchat.terminal.answering import answer
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.figures import figures_line
from hierchat.terminal.lines import Lines
from hierchat.terminal.screen import Screen, say
from hierchat.terminal.sources import show_sources
from hierchat.terminal.talk import Talk
from hierchat.transfer.exporting import file_name, save_markdown

_OFF = "off"


class Interactive:
    """The loop, and what each command does."""

    def __init__(self, talk: Talk, screen: Screen, console: Console, notes: Console) -> None:
        """`console`: standard output; `notes`: all that is no reply."""
        self._talk = talk
        self._screen = screen
        self._console = console
        self._notes = notes
        self._goes_on = True
        self._commands: dict[str, tuple[Callable[[str], None], str, str]] = {
            "/new": (self._new, "", "begin another chat"),
            "/model": (self._model, "[NAME]", "let another model answer, or show which there are"),
            "/system": (self._system, "[TEXT]", "set the system prompt of this chat; `off`: none"),
            "/temperature": (self._temperature, "[N]", "0 takes the likeliest token each time"),
            "/seed": (self._seed, "[N]", "same seed, same words; `off`: a new one for each reply"),
            "/sources": (self._sources, "", "where the words of the last reply came from"),
            "/save": (self._save, "[FILE]", "write this chat as Markdown"),
            "/help": (self._help, "", "this list"),
            "/exit": (self._exit, "", "leave; Ctrl-D does, too"),
        }

    def run(self, lines: Lines) -> None:
        """Until the user leaves. Raises BrokenPipeError where nobody reads any more."""
        while self._goes_on and (text := lines.read()) is not None:
            if not text.strip():
                continue
            try:
                self._do(text)
                self._notes.print()
            except BrokenPipeError:
                raise
            except Exception as error:
                self._say(logs.said(error, here=True))

    def completions(self, typed: str) -> list[str]:
        """What a line that begins so may become."""
        if not typed.startswith("/"):
            return []
        if typed.startswith("/model "):
            try:
                return [
                    f"/model {name}"
                    for name in self._talk.model.names()
                    if f"/model {name}".startswith(typed)
                ]
            except TerminalError:
                return []
        return [
            f"{name} " if takes else name
            for name, (_, takes, _) in self._commands.items()
            if name.startswith(typed)
        ]

    def _do(self, text: str) -> None:
        word, _, rest = text.strip().partition(" ")
        if word in self._commands:
            self._commands[word][0](rest.strip())
        elif word.startswith("/") and word[1:].isalpha():
            self._say(f"{word} is no command. /help lists them.")
        else:
            self._ask(text)

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

    def _system(self, text: str) -> None:
        if text:
            self._talk.changes.system_prompt = "" if text == _OFF else text
        prompt = self._talk.settings.system_prompt
        self._say(f"System prompt: {prompt}" if prompt else "This chat sets no system prompt.")

    def _temperature(self, text: str) -> None:
        if text:
            self._set("temperature", values.temperature, text)
        now = self._talk.settings.sampling.get("temperature")
        self._say("The server chooses the temperature." if now is None else f"Temperature: {now:g}")

    def _seed(self, text: str) -> None:
        if text == _OFF:
            self._talk.changes.sampling["seed"] = None
        elif text:
            self._set("seed", values.seed, text)
        seed = self._talk.settings.sampling.get("seed")
        self._say("A new seed for each reply." if seed is None else f"Seed: {seed}")

    def _set(self, name: str, read: Callable[[str], float], text: str) -> None:
        try:
            self._talk.changes.sampling[name] = read(text)
        except ArgumentTypeError as error:
            raise TerminalError(str(error)) from error

    def _sources(self, rest: str) -> None:
        if runs := self._talk.runs():
            show_sources(runs, self._console)
        else:
            self._say("Nothing is known of where the last reply's words came from.")

    def _save(self, name: str) -> None:
        chat = self._talk.chat()
        if chat is None or not chat.messages:
            raise TerminalError("Nothing was said yet.")
        out = Path(name or file_name(chat, set())).expanduser().absolute()
        if out.is_dir():
            out /= file_name(chat, set())
        if not out.parent.is_dir():
            raise StoreError(f"There is no folder {out.parent}. Make it, or name another file.")
        save_markdown(chat, out)
        self._say(f"Written to {out}")

    def _help(self, rest: str) -> None:
        for name, (_, takes, does) in self._commands.items():
            self._say(f"{f'{name} {takes}':<18} {does}")
        self._say(r"A line that ends with \ goes on in the next one. Ctrl-C stops a reply.")

    def _exit(self, rest: str) -> None:
        self._goes_on = False
