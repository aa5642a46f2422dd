"""Hold a chat of the terminal: ChatService answers and stores it, over a model of this process or of a server."""

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, TextIO

from pydantic import ValidationError

from hierchat.chat.conversations import reply_settings
from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.cli.chat import KEY_VARIABLE, ChatFlags
from hierchat.cli.options import CommandError
from hierchat.cli.screen import wait_for_model
from hierchat.config import database_file
from hierchat.engine.remote.openai_client import OpenAIClient, ServerError
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.bring import is_fetched
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import LOCAL_USER, Chat, NotFound, Store
from hierchat.store.records import Attachment, ChatSettings, NewMessage, Project

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before huggingface_hub is imported, which reads it once

DELETED = "This chat was deleted meanwhile. What you say next begins a new one."
USUAL_URL = "http://127.0.0.1:7860"
"""Where a hierchat of this machine listens."""


class OwnModel:
    """Chooses the model that answers; while one is loaded, `out` shows how far it is."""

    def __init__(self, slot: ModelSlot, out: TextIO = sys.stderr) -> None:
        self.slot = slot
        self._out = out

    @property
    def name(self) -> str:
        return self.slot.model.name if self.slot.model else ""

    @property
    def place(self) -> str:
        """Return the server of the model, as shown after its name; empty if it runs on this machine."""
        engine = self.slot.catalogue.entry(self.name).engine
        return f" at {engine.openai.url}" if engine else ""

    def names(self) -> list[str]:
        return self.slot.names

    def about(self, name: str) -> str:
        """Return a hint about a model to read before it is chosen; mostly empty."""
        present = is_fetched(self.slot.catalogue.entry(name), best_device())
        return "" if present else "not on this machine: it is fetched first"

    def choose(self, name: str) -> None:
        """Switch to another model, and return when it can answer. Raises CommandError, and the present one stays."""
        require(name, self.names())
        if name == (before := self.name):
            return
        self.slot.start(name)
        try:
            wait_for_model(self.slot, self._out)
        except KeyboardInterrupt:
            if not before:
                raise
            self.slot.start(before)
            wait_for_model(self.slot, self._out)
            raise CommandError(f"Stopped. {before} goes on answering.") from None
        if self.name != name:
            raise CommandError(self.slot.status.message or f"{name} could not be loaded.")


def require(name: str, names: Sequence[str]) -> None:
    """Raise CommandError if no model has that name."""
    if name not in names:
        raise CommandError(f"No model is called {name!r}. There are: {', '.join(names)}.")


@dataclass(slots=True)
class SettingsOverrides:
    """Settings by flags and commands of this run, which override those of the chat."""

    system_prompt: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    def over(self, settings: ChatSettings) -> ChatSettings:
        """Return the chat's settings with these overrides applied."""
        prompt = settings.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(settings, system_prompt=prompt, sampling={**settings.sampling, **self.sampling})


_CHATS = 20
"""In so many of the last chats the earlier messages are looked for."""


class KeptChats:
    """Keeps a user's chats in the store, and the question that waits for a reply: a crash leaves it in its
    chat, without a reply."""

    def __init__(
        self, store: Store, user: int, project: Project | None = None, *, incognito: bool = False
    ) -> None:
        """`project`: new chats begin in it, and the last one is searched in it. `incognito`: no other chat drafts
        them, and they are erased when the store closes."""
        self.store = store
        self.user = user
        self.project = project.id if project else None
        self.incognito = incognito
        self._began: int | None = None
        self.held: int | None = None

    def hold(self, text: str, files: Sequence[Attachment], number: int | None) -> int:
        """Store a question and return the chat's number; with `number` None, of a new chat. Raises NotFound."""
        chats = self.store.chats
        if number is None:
            begun = chats.begin_incognito(self.user) if self.incognito else None
            number = self._began = begun or chats.create(self.user, project_id=self.project)
        message = NewMessage(self.end_of(number), text, files=files)
        self.held = self.store.messages.enqueue(self.user, number, message, at_end=True)
        return number

    def let_go(self) -> bool:
        """Remove the stored question, and tell whether its new chat went with it, since nothing was asked there."""
        held, began, self.held, self._began = self.held, self._began, None, None
        if held is not None:
            self.store.messages.dequeue(held)
        return began is not None and self.store.chats.discard(self.user, began)

    def end_of(self, number: int) -> int | None:
        """Return the id of a chat's last message; None if it has none. Raises NotFound."""
        path = self.store.messages.path(self.user, number, most=1)
        return path[-1].id if path else None

    def last(self) -> int:
        """Return the number of the chat with the latest message. Raises CommandError if there is none."""
        chats = self.store.chats.find(self.user, limit=-1, project=self.project)
        for chat in sorted(chats, key=lambda chat: chat.updated_at, reverse=True):
            if self.end_of(chat.id) is not None:  # a page may have just opened one
                return chat.id
        raise CommandError("There is no chat to go on with yet. Leave --continue out to begin one.")

    def earlier(self, most: int) -> list[str]:
        """Return the questions of the user's last chats: the last `most`, oldest first."""
        asked = [
            message
            for chat in self.store.chats.find(self.user, limit=_CHATS)
            for message in self.store.messages.path(self.user, chat.id)
            if message.role == "user" and message.text.strip()
        ]
        asked.sort(key=lambda message: message.created_at)
        return [message.text for message in asked[-most:]]


@dataclass(eq=False)
class Talk:
    """Leads the terminal's chat: asks, answers, and begins others. The service stores it as it does for the page."""

    model: OwnModel
    changes: SettingsOverrides
    _service: ChatService
    kept: KeptChats
    number: int | None = None
    """The number, in the database, of the chat that goes on."""

    @property
    def settings(self) -> ChatSettings:
        """Return the settings in force from the next reply on."""
        kept = self.kept
        return self.changes.over(self._service.chats.settings(kept.user, self.number, kept.project))

    def ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        """Ask a question and yield the frames of the reply. Raises what keeps it from beginning.

        The question is stored from the first frame on, until `take_back`."""
        try:
            yield from self._ask(text, files, stop)
        except NotFound as error:
            self.new()
            raise CommandError(DELETED) from error

    def _ask(self, text: str, files: Sequence[Attachment], stop: Event) -> Generator[Frame, None, None]:
        settings, user = self.settings, self.kept.user
        number = self.number = self.kept.hold(text, files, self.number)
        self._service.chats.keep_settings(user, number, settings)
        question = NewQuestion(number, self.kept.end_of(number), text, files, self.kept.held)
        sampling = reply_settings({**settings.sampling, "tools": False})  # nobody could allow a call here
        with closing(self._service.send(user, question, sampling, stop)) as frames:
            yield from frames

    def take_back(self) -> None:
        """Remove the stored question, unless the reply has begun: then this changes nothing."""
        if self.kept.let_go():
            self.number = None

    def new(self) -> None:
        """Begin another chat with the same overrides of settings."""
        self.number = None

    def chat(self) -> Chat | None:
        """Return the chat with all its messages; None if it has none."""
        kept = self.kept
        return None if self.number is None else kept.store.transfer.export_chat(kept.user, self.number)


# From the flags to a chat that can begin
@contextmanager
def open_talk(flags: ChatFlags) -> Iterator[Talk]:
    """Open the chat that the flags ask for, its model loaded. Raises what keeps it from beginning."""
    if flags.no_history and (flags.go_on or flags.project):
        other = "--continue" if flags.go_on else "--project"
        raise CommandError(f"{other} needs what --no-history leaves out. Give one of the two.")
    given = {"temperature": flags.temperature, "seed": flags.seed, "max_new_tokens": flags.max_new_tokens}
    sampling = {name: value for name, value in given.items() if value is not None}
    catalogue = _models_of(flags.url, flags.key) if flags.url else read_catalogue()
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(database_file(flags.db)))
        if store.notice:
            print(store.notice, file=sys.stderr)
        user = store.users.ensure(LOCAL_USER)
        project = _project(store.projects.all(user), flags.project) if flags.project else None
        kept = KeptChats(store, user, project, incognito=flags.no_history)
        number = kept.last() if flags.go_on else None
        slot = ModelSlot(catalogue, backend=flags.backend, costs=store.learned)
        preferred = project.model if project and project.model in slot.names else None
        name = flags.model or preferred or slot.names[0]
        require(name, slot.names)
        service = stack.enter_context(closing(ChatService(store, slot)))
        model = OwnModel(slot)
        model.choose(name)
        yield Talk(model, SettingsOverrides(flags.system, sampling), service, kept, number)


def _models_of(url: str, key: str | None) -> Catalogue:
    """Return the models of a server of OpenAI's protocol, the loaded one first if it tells. Raises CommandError."""
    if key:
        os.environ[KEY_VARIABLE] = key
    address = url if "://" in url else f"http://{url}"
    try:
        server = OpenAI(url=address, key_variable=KEY_VARIABLE)
        listed = OpenAIClient.of_catalogue(server).models()
    except ValidationError as error:
        raise CommandError(f"{url!r} is no address. One is {USUAL_URL}.") from error
    except ServerError as error:
        raise CommandError(str(error)) from error
    if not listed:
        raise CommandError(f"There is no model at {server.url}.")
    listed.sort(key=lambda one: not one.get("loaded"))
    models = {}
    for name in dict.fromkeys(str(one["id"]) for one in listed):
        engine = EngineElsewhere(openai=server.model_copy(update={"model": name}))
        entry = ModelEntry(name="server", engine=engine)
        models[name] = entry.model_copy(update={"name": name})  # which servers write as they like
    return Catalogue(models=models, default=next(iter(models)))


def _project(projects: Sequence[Project], name: str) -> Project:
    """Return the project with this name, in any case of its letters. Raises CommandError if there is none."""
    for project in projects:
        if project.name.casefold() == name.casefold():
            return project
    there = ", ".join(project.name for project in projects) or "none"
    raise CommandError(f"There is no project {name!r}. There are: {there}.")
