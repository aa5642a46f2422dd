"""Define `hierchat chat`: one answer, or a loop of questions."""

import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path
from threading import Event
from typing import Any

import click
from rich.console import Console

from hierchat import logs, shutdown
from hierchat.chat.conversations import reply_settings
from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.cli import options
from hierchat.cli.options import CommandError
from hierchat.cli.screen import TerminalScreen, figures_line, record, say, wait_for_model
from hierchat.config import database_file
from hierchat.models.catalogue import Backend, read_catalogue
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import LOCAL_USER, NotFound, Store
from hierchat.store.records import Attachment, ChatSettings, Project
from hierchat.texts.attachments import MOST_BYTES, read

with suppress(ImportError):  # Windows
    import readline  # noqa: F401  # input() edits lines with it

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before huggingface_hub is imported, which reads it once

DELETED = "This chat was deleted meanwhile. What you say next begins a new one."
FIRST, MORE = "> ", ". "
HELP = r"/new begins another chat, \ continues a line in the next one, Ctrl-C stops a reply, Ctrl-D leaves"
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes that a shell gives to a program ended by SIGINT and by SIGPIPE."""


@dataclass(eq=False)
class TerminalChat:
    """Chat of the terminal. ChatService stores it as it stores the page's chats."""

    service: ChatService
    store: Store
    slot: ModelSlot
    user: int
    project: int | None = None
    incognito: bool = False
    """Whether no other chat drafts, and the chat is erased when the store closes."""
    system_prompt: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Settings of the command line. They override those of the chat."""
    number: int | None = None
    """The chat's id in the store; None before its first question."""

    @property
    def model(self) -> str:
        model = self.slot.model
        return model.name if model else ""

    @property
    def place(self) -> str:
        """Return the model's server, as shown after its name; empty if it runs on this machine."""
        engine = self.slot.catalogue.entry(self.model).engine
        return f" at {engine.openai.url}" if engine else ""

    @property
    def settings(self) -> ChatSettings:
        """Return the settings of the next reply."""
        found = self.service.chats.settings(self.user, self.number, self.project)
        prompt = found.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(found, system_prompt=prompt, sampling={**found.sampling, **self.sampling})

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Ask a question and yield the frames of the reply. Raises CommandError, and as ChatService.send."""
        chats = self.store.chats
        number = self.number
        try:
            settings = self.settings
            if number is None:
                begun = chats.begin_incognito(self.user) if self.incognito else None
                number = self.number = begun or chats.create(self.user, project_id=self.project)
            self.service.chats.keep_settings(self.user, number, settings)
            question = NewQuestion(number, self.store.messages.last(self.user, number), text, files)
            sampling = reply_settings({**settings.sampling, "tools": False})  # nobody could allow a call here
            yield from self.service.send(self.user, question, sampling, stop)
        except NotFound as error:
            raise CommandError(DELETED) from error
        finally:
            if number is not None and chats.discard(self.user, number):
                self.number = None

    def take_up_last(self) -> None:
        """Continue the chat with the latest message. Raises CommandError if there is none."""
        chats = self.store.chats.find(self.user, limit=-1, project=self.project)
        for chat in sorted(chats, key=lambda chat: chat.updated_at, reverse=True):
            if self.store.messages.last(self.user, chat.id) is not None:  # a page may have just opened one
                self.number = chat.id
                return
        raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")


def answer(
    chat: TerminalChat, text: str, files: Sequence[Attachment], screen: TerminalScreen | None
) -> Frame:
    """Show the reply to a question as it is written, until Ctrl-C; return its last frame.
    Raises what keeps it from beginning, BrokenPipeError, and Ended."""
    stop, last = Event(), Frame("waiting")
    with shutdown.stopped_by_signals(stop):
        try:
            with closing(chat.ask(text, files, stop)) as frames:
                for last in frames:
                    if screen:
                        screen.show(last)
        finally:
            if screen:
                screen.end()
    return last


def loop(chat: TerminalChat, screen: TerminalScreen, notes: Console) -> None:
    """Read questions and answer them until the user leaves. Raises BrokenPipeError if standard output is closed."""
    while (text := read_message()) is not None:
        word = text.strip()
        try:
            if word == "/exit":
                return
            if word == "/new":
                chat.number = None
                say(notes, "A new chat.")
            elif word.startswith("/") and word[1:].isalpha():
                say(notes, HELP)
            elif word:
                last = answer(chat, text, (), screen)
                if last.phase == "waiting":
                    say(notes, "Stopped before it began: nothing was asked.")
                _say_figures(notes, last)
        except BrokenPipeError:
            raise
        except Exception as error:
            say(notes, logs.error_message(error, here=True))
        notes.print()


def read_message() -> str | None:
    r"""Return the user's next message; None if the user leaves. A line that ends with \ continues in the next one.
    Ctrl-C begins anew."""
    parts: list[str] = []
    while True:
        try:
            line = _line(MORE if parts else FIRST)
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            parts = []
            continue
        if not line.endswith("\\"):
            return "\n".join([*parts, line])
        parts.append(line[:-1])


def _line(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)  # standard output is for replies
    return input()


def _say_figures(notes: Console, last: Frame) -> None:
    for sentence in (last.notice, figures_line(last.figures)):
        if sentence:
            say(notes, sentence)


@dataclass(frozen=True, slots=True)
class ChatFlags:
    """Flags of `hierchat chat`."""

    message: tuple[str, ...] = ()
    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    project: str | None = None
    go_on: bool = False
    no_history: bool = False
    json: bool = False
    backend: Backend | None = None
    db: Path | None = None


@click.command(
    "chat",
    cls=options.Command,
    help="A chat in the terminal. With a MESSAGE, or with text on standard input, it answers once.",
    epilog="The chats are those of the page.",
)
@click.argument("message", nargs=-1)
@options.model_option
@click.option("--system", metavar="TEXT", help="the system prompt of this chat")
@click.option("--temperature", type=options.temperatures, metavar="N", help="0 takes the likeliest token")
@click.option("--seed", type=options.seeds, metavar="N", help="same seed, same words")
@click.option("--max-new-tokens", type=options.max_tokens, metavar="N", help="the longest reply")
@click.option("--project", metavar="NAME", help="a chat of this project, with its documents")
@click.option("--continue", "go_on", is_flag=True, help="go on with your last chat")
@click.option("--no-history", is_flag=True, help="draft from no other chat of yours, and keep nothing")
@click.option("--json", is_flag=True, help="one JSON object: the text and what was measured")
@options.backend_option
@options.database_option
def chat_command(model: str | None, **more: Any) -> int:
    return run(ChatFlags(model=options.catalogue_name(model), **more))


def run(flags: ChatFlags) -> int:
    """Answer once, or until the user leaves, and return the exit code."""
    text, files = _question(" ".join(flags.message))
    if not text and not files and flags.json:
        raise CommandError("--json is for one answer. Give a message, or pipe one in.")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what the terminal cannot show
    try:
        with open_chat(flags) as chat:
            return _one(chat, text, files, flags) if text or files else _many(chat, flags)
    except BrokenPipeError:  # Python would report it once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _question(message: str) -> tuple[str, Sequence[Attachment]]:
    """Return the message and its files; piped text is the message or a file. Raises Unreadable, CommandError."""
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


def _one(chat: TerminalChat, text: str, files: Sequence[Attachment], flags: ChatFlags) -> int:
    last = answer(chat, text, files, None if flags.json else _screen(chat))
    if last.phase == "waiting":
        return INTERRUPTED
    if flags.json:
        said = record(last, chat.model, None if flags.no_history else chat.number)
        print(json.dumps(said, ensure_ascii=False))
    else:
        _say_figures(Console(stderr=True), last)
    return {"stopped": INTERRUPTED, "error": 1}.get(last.finish or "", 0)


def _many(chat: TerminalChat, flags: ChatFlags) -> int:
    notes = Console(stderr=True)
    about = " · nothing is kept" if flags.no_history else ""
    if chat.number is not None:
        about = f" · going on with “{chat.store.chats.get(chat.user, chat.number).title}”"
    say(notes, f"{chat.model}{chat.place}{about} · {HELP}")
    loop(chat, _screen(chat), notes)
    return 0


def _screen(chat: TerminalChat) -> TerminalScreen:
    return TerminalScreen(sys.stdout, chat.settings.sampling.get("stop") or ())


@contextmanager
def open_chat(flags: ChatFlags) -> Iterator[TerminalChat]:
    """Open the chat that the flags name, with its model loaded. Raises CommandError, and what the store raises."""
    if flags.no_history and (flags.go_on or flags.project):
        other = "--continue" if flags.go_on else "--project"
        raise CommandError(f"{other} needs what --no-history leaves out. Give one of the two.")
    given = {"temperature": flags.temperature, "seed": flags.seed, "max_new_tokens": flags.max_new_tokens}
    sampling = {name: value for name, value in given.items() if value is not None}
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(database_file(flags.db)))
        user = store.users.ensure(LOCAL_USER)
        project = _project(store.projects.all(user), flags.project) if flags.project else None
        slot = ModelSlot(read_catalogue(), backend=flags.backend, learned=store.learned)
        service = stack.enter_context(closing(ChatService(store, slot)))
        number = project.id if project else None
        chat = TerminalChat(service, store, slot, user, number, flags.no_history, flags.system, sampling)
        if flags.go_on:
            chat.take_up_last()
        preferred = project.model if project and project.model in slot.names else None
        _load(slot, flags.model or preferred or slot.names[0])
        yield chat


def _load(slot: ModelSlot, name: str) -> None:
    if name not in slot.names:
        raise CommandError(f"No model is called {name!r}. There are: {', '.join(slot.names)}.")
    slot.start(name)
    wait_for_model(slot)
    if slot.model is None or slot.model.name != name:
        raise CommandError(slot.status.message or f"{name} could not be loaded.")


def _project(projects: Sequence[Project], name: str) -> Project:
    for project in projects:
        if project.name.casefold() == name.casefold():
            return project
    there = ", ".join(project.name for project in projects) or "none"
    raise CommandError(f"There is no project {name!r}. There are: {there}.")
