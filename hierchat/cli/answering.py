"""Connect the terminal's chat to what answers: the model of this process, or a server of OpenAI's protocol."""

import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from threading import Event
from types import MappingProxyType
from typing import Any, TextIO
from urllib.parse import urlsplit

from hierchat.chat.conversations import reply_settings
from hierchat.chat.frames import Figures, Frame
from hierchat.chat.service import ChatService
from hierchat.cli import talk
from hierchat.cli.chat import KEY_VARIABLE, ChatFlags
from hierchat.cli.options import CommandError
from hierchat.cli.screen import wait_for_model
from hierchat.config import database_file
from hierchat.engine.remote import openai_engine
from hierchat.engine.remote.openai_client import Chunk, Failure, OpenAIClient, ServerError, request_fields
from hierchat.models.catalogue import read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.bring import is_fetched
from hierchat.reasoning import split_reasoning
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import DraftsFrom, Project

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before huggingface_hub is imported, which reads it once


class OwnModel:
    """Has the model of this process answer; while another one is loaded, `out` shows how far it is."""

    def __init__(self, service: ChatService, slot: ModelSlot, out: TextIO = sys.stderr) -> None:
        self._service = service
        self.slot = slot
        self._out = out
        self.place = ""

    @property
    def name(self) -> str:
        return self.slot.model.name if self.slot.model else ""

    def names(self) -> list[str]:
        return self.slot.names

    def about(self, name: str) -> str:
        present = is_fetched(self.slot.catalogue.entry(name), best_device())
        return "" if present else "not on this machine: it is fetched first"

    def choose(self, name: str) -> None:
        talk.require(name, self.names())
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

    def complete(
        self, user: int, messages: Sequence[PromptMessage], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        """Yield the frames of a reply that is not stored. No other chat of the user drafts it."""
        allowed: DraftsFrom = "none" if self._service.users.drafts_from(user) == "none" else "chat"
        yield from self._service.completions.complete(messages, reply_settings(sampling), user, stop, allowed)


# A server that answers
USUAL_URL = "http://127.0.0.1:7860"
"""Where a hierchat of this machine listens."""
_LOOK_SECONDS, _LIST_SECONDS = 2.0, 30.0
_FINISH = {"stop": "end", "length": "length", "content_filter": "error"}


class ServerModel:
    """Has a model of a server that speaks OpenAI's protocol answer."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: with or without /v1. Raises CommandError if it is no address."""
        address = url if "://" in url else f"http://{url}"
        self.url = address.rstrip("/").removesuffix("/v1")
        try:
            parsed = urlsplit(self.url)
            valid = parsed.scheme in ("http", "https") and parsed.hostname and (parsed.port or True)
        except ValueError:
            valid = False
        if not valid:
            raise CommandError(f"{url!r} is no address. One is {USUAL_URL}.")
        self._client = OpenAIClient(self.url, key or "", self._sentence)
        self.name = self._owner = ""
        self.place = f" at {self.url}"

    def is_hierchat(self) -> bool:
        """Tell whether a hierchat answers at the address and accepts the key. Waits for two seconds at most."""
        with suppress(OSError, HTTPException, ServerError):
            with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=_LOOK_SECONDS)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status != HTTPStatus.OK:
                    return False
            return any(one.get("owned_by") == "hierchat" for one in self._client.models(_LOOK_SECONDS))
        return False

    def names(self) -> list[str]:
        return [str(one["id"]) for one in self._listed()]

    def about(self, name: str) -> str:
        return ""

    def choose(self, name: str | None = None) -> None:
        """Choose a model of the server; without a name the one loaded there, if the server tells, else the first."""
        listed = self._listed()
        if name:
            models = {str(one["id"]): one for one in listed}
            talk.require(name, list(models))
            model = models[name]
        elif not listed:
            raise CommandError(f"There is no model at {self.url}.")
        else:
            model = next((one for one in listed if one.get("loaded")), listed[0])
        self.name, self._owner = str(model["id"]), str(model.get("owned_by") or "")

    def complete(
        self, messages: Sequence[PromptMessage], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        """Yield the frames of a reply; an error after its first words stands in the last frame. Raises CommandError."""
        # Of earlier replies the answers alone, without thoughts
        answers = [one.role == "assistant" and split_reasoning(one.text).answer for one in messages]
        body = {
            "model": self.name,
            "messages": [
                {"role": one.role, "content": answer or one.text}
                for one, answer in zip(messages, answers, strict=True)
            ],
            "stream_options": {"include_usage": True},
            **request_fields(sampling),
        }
        thinking = openai_engine.asked(self._owner, self.name, sampling.get("reasoning") or "")
        reply = _StreamedReply(sampling)
        yield Frame("waiting")
        try:
            try:
                yield from self._written(body | thinking, reply, stop)
            except ServerError as error:
                if not thinking or error.failure.status not in openai_engine.NOT_TAKEN:
                    raise
                reply.notice = openai_engine.LEFT_OUT.format(url=self.url)
                yield from self._written(body, reply, stop)
        except ServerError as error:
            if not reply.text or error.failure.kind == "refused":
                raise CommandError(str(error)) from error
            reply.finish, reply.notice = "error", str(error)
        if stop.is_set():
            reply.finish = "stopped"
            if not reply.text:
                return
        try:
            last = reply.frame("done")
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # figures of another form
            raise CommandError(self._sentence(Failure("foreign"))) from error
        yield last

    def _written(
        self, body: dict[str, Any], reply: "_StreamedReply", stop: Event
    ) -> Generator[Frame, None, None]:
        for chunk in self._client.chat(body, stop):
            if reply.take(chunk):
                yield reply.frame("writing")

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return self._client.models(_LIST_SECONDS)
        except ServerError as error:
            raise CommandError(str(error)) from error

    def _sentence(self, failure: Failure) -> str:
        match failure:
            case Failure("unreachable"):
                start = "Start a server there, such as hierchat with --api, or leave --url out."
                return f"Nothing answers at {self.url}. {start}"
            case Failure("broke off"):
                return f"{self.url} broke off in mid-reply."
            case Failure(status=401):
                return (
                    "The server asks for a key, and knows none such. Name one with --key or in HIERCHAT_KEY."
                )
            case Failure("foreign") | Failure(status=404, said="") | Failure(status=404, model=""):
                return f"What answers at {self.url} does not speak OpenAI's protocol."
        return failure.said or f"The server answered {failure.status}."


class _StreamedReply:
    """Collects a server's reply as its chunks come."""

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        self.text = ""
        self._thoughts = openai_engine.Thoughts()
        self.finish: str | None = None
        self.notice: str | None = None
        self._prompt_tokens = self._tokens = 0
        self._measured: Mapping[str, Any] = {}
        self._seed = sampling.get("seed") if sampling.get("temperature") else None
        self._begun = time.monotonic()
        self._first: float | None = None
        self._last = self._begun

    def take(self, chunk: Chunk) -> bool:
        self._prompt_tokens = chunk.prompt_tokens or self._prompt_tokens
        self._tokens = chunk.completion_tokens or self._tokens
        self._measured = chunk.figures or self._measured
        if chunk.finish:
            self.finish = _FINISH.get(chunk.finish, "end")
        piece = self._thoughts.text(chunk.thought, chunk.text)
        if piece:
            self._last = time.monotonic()
            self._first = self._first or self._last
            self.text += piece
        return bool(piece)

    def frame(self, phase: Any) -> Frame:
        done = phase == "done"
        if done:
            self.text += self._thoughts.end()
        return Frame(
            phase,
            text=self.text,
            figures=replace(self._figures(), finish=self.finish) if done else Figures(),
            finish=self.finish if done else None,
            notice=self.notice if done else None,
        )

    def _figures(self) -> Figures:
        """Return the reply's figures as the server measured them if it is a hierchat, else by the clock here."""
        measured, tokens = self._measured, self._tokens
        seconds = self._last - (self._first or self._last)
        own_rate = (tokens - 1) / seconds if tokens > 1 and seconds else None
        rate = measured.get("tokens_per_second") or own_rate
        speedup, drafted = measured.get("speedup"), measured.get("drafted")
        return Figures(
            tokens=tokens,
            seconds=tokens / rate if rate else seconds,
            first_token_seconds=None if self._first is None else self._first - self._begun,
            tokens_per_second=rate,
            total_seconds=self._last - self._begun,
            waited_seconds=measured.get("waited_seconds"),
            tokens_per_forward=measured.get("tokens_per_forward"),
            acceptance_rate=measured["accepted"] / drafted if drafted else None,
            speedup=speedup,
            baseline="measured" if speedup else None,
            baseline_tokens_per_second=rate / speedup if rate and speedup else None,
            prompt_tokens=self._prompt_tokens,
            shares=MappingProxyType(dict(measured.get("sources") or {})),
            seed=next(iter(measured.get("seeds") or []), self._seed),
        )


# From the flags to a chat that can begin: over a server if there is one, else by a model in this process.
@contextmanager
def open_talk(flags: ChatFlags) -> Iterator[talk.Talk]:
    """Open the chat that the flags ask for, its model loaded. Raises what keeps it from beginning."""
    if flags.alone and flags.url:
        raise CommandError("--alone and --url are opposites. Give one of the two.")
    if flags.go_on and flags.no_history:
        raise CommandError("--continue needs what --no-history leaves out. Give one of the two.")
    given = {"temperature": flags.temperature, "seed": flags.seed, "max_new_tokens": flags.max_new_tokens}
    sampling = {name: value for name, value in given.items() if value is not None}
    changes = talk.SettingsOverrides(flags.system, sampling)
    if flags.project and (flags.url or flags.no_history):
        raise CommandError(
            "--project needs your chats, and a model in this process. Leave --url and --no-history out."
        )
    server = None if flags.project else find_server(flags)
    if server and flags.no_history:
        yield talk.TalkInMemory(server, changes, server.complete)
        return
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(database_file(flags.db)))
        if store.notice:
            print(store.notice, file=sys.stderr)
        user = store.users.ensure(LOCAL_USER)
        project = _project(store.projects.all(user), flags.project) if flags.project else None
        kept = talk.KeptChats(store, user, project)
        number = kept.last() if flags.go_on else None
        if server:
            yield talk.CopiedTalk(server, changes, server.complete, kept=kept, number=number)
            return
        slot = ModelSlot(read_catalogue(), backend=flags.backend, costs=store.learned)
        name = flags.model or (project and project.model) or slot.names[0]
        talk.require(name, slot.names)
        service = stack.enter_context(closing(ChatService(store, slot)))
        model = OwnModel(service, slot)
        model.choose(name)
        if flags.no_history:
            answer = partial(model.complete, kept.user)
            yield talk.TalkInMemory(model, changes, answer, service.chats.settings(kept.user, None))
        else:
            yield talk.StoredTalk(model, changes, service, kept=kept, number=number)


def _project(projects: Sequence[Project], name: str) -> Project:
    """Return the project with this name, in any case of its letters. Raises CommandError if there is none."""
    for project in projects:
        if project.name.casefold() == name.casefold():
            return project
    there = ", ".join(project.name for project in projects) or "none"
    raise CommandError(f"There is no project {name!r}. There are: {there}.")


def find_server(flags: ChatFlags) -> ServerModel | None:
    """Return the server of `--url`, else a hierchat that runs on this machine and has the model; None without one."""
    key = flags.key or os.environ.get(KEY_VARIABLE)
    server = ServerModel(flags.url or USUAL_URL, key)
    if not flags.url and (flags.alone or flags.backend or not server.is_hierchat()):
        return None
    with nullcontext() if flags.url else suppress(CommandError):  # it has not that model
        server.choose(flags.model)
        return server
    return None
