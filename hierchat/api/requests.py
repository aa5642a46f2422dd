"""Reply to other programs: from a request to its last frames, in the same queue as replies of the page."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hierchat.access.limits import InvalidJson, parse_json
from hierchat.api.keys import CALLER, ApiError, Caller, KeyLimits, as_api_error
from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import writes
from hierchat.chat.reply_stream import ReplyOptions, ReplyRecorder, ReplyStream
from hierchat.chat.service import ChatService
from hierchat.config import MOST_TOKENS, GenerationSettings
from hierchat.engine.sampling.grammar import bounded
from hierchat.runtime.prompt import Prompt
from hierchat.runtime.served_model import ServedModel
from hierchat.store import StoreError

# The fields that requests of several addresses share: model, sampling, and how the reply comes back.
Stop = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(strict=False)]
"""Key of a JSON object, which is a string there."""
Schema = Annotated[dict[str, Any], AfterValidator(bounded)]


class Strict(BaseModel, extra="forbid", allow_inf_nan=False, strict=True):
    """Base of all parts of a request: null fields count as left out; unknown fields and wrong types are refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Sampled(Strict):
    """Base of requests for a completion; sampling that a request leaves open is the model's in the catalogue."""

    model: str = ""
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    # They say who asks, or how others keep it: nothing here depends on them, and none of them is kept.
    user: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    safety_identifier: str = ""
    prompt_cache_key: str = ""
    # Of these, only the value that asks for nothing is understood.
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    repeat_penalty: float | None = Field(None, gt=0, le=10)
    presence_penalty: float | None = Field(None, ge=-10, le=10)
    frequency_penalty: float | None = Field(None, ge=-10, le=10)
    logit_bias: dict[TokenId, float] = Field(default_factory=dict)
    stop: Stop | list[Stop] = Field(default_factory=list)
    max_tokens: int | None = Field(None, ge=1)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def settings(self, usual: GenerationSettings, room: int, grammar: str = "") -> GenerationSettings:
        """Return the generation settings: the request's over `usual`, for a context with `room` tokens left."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty or self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias or None,
            "stop": self.stops or None,
        }
        chosen = usual.model_dump() | {name: value for name, value in given.items() if value is not None}
        chosen["max_new_tokens"] = min(self.most_tokens or room, room, MOST_TOKENS)
        chosen["seed"] = secrets.randbits(32) if self.seed is None else self.seed % 2**63
        return GenerationSettings(**chosen | {"grammar": grammar})


# Which models a program may name, and having the one that it names loaded.
_POLL_SECONDS = 0.1
_STARTED = int(time.time())


def listed(service: ChatService) -> list[dict[str, Any]]:
    """Return the models that are on this machine, in OpenAI's form."""
    served = service.served
    return [
        {
            "id": name,
            "object": "model",
            "created": _STARTED,
            "owned_by": "hierchat",
            "loaded": served is not None and served.name == name,
        }
        for name in service.models.names
    ]


def require_here(service: ChatService, name: str) -> None:
    """Raise ApiError if no model of this machine has the name. No name means the one that is loaded."""
    if name and name not in (names := service.models.names):
        there = f"There are: {', '.join(names)}." if names else "None is there yet."
        why = f"No model on this machine is called {name!r}. {there}"
        raise ApiError(404, why, "model", "model_not_found")


def load(service: ChatService, name: str, stop: threading.Event) -> float:
    """Load the named model, wait for it, and return the seconds that this took. Raises ApiError."""
    began, status = time.monotonic(), service.model_status
    if not name or (service.served is not None and service.served.name == name):
        return 0.0
    if status.name != name or status.phase in ("none", "ready", "failed"):
        service.models.load(name)
    while not stop.is_set():
        status, served = service.model_status, service.served
        if served is not None and served.name == name:
            return time.monotonic() - began
        if status.phase in ("none", "failed") or (status.phase == "ready" and status.name != name):
            why = str(status.message) or f"{name} was not loaded."
            raise ApiError(503, why, "model", "model_not_loaded")
        stop.wait(_POLL_SECONDS)
    return 0.0


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """One reply that a program asks for; `prompt` and `settings` are built once the model is loaded."""

    model: str
    """Empty: the one that is loaded."""
    prompt: Callable[[ServedModel], Prompt]
    settings: Callable[[ServedModel, Prompt], GenerationSettings]
    question: str
    """The part of the prompt that is kept where a history is kept."""


def _require_possible(served: ServedModel, settings: GenerationSettings) -> None:
    if not served.is_local:
        if settings.grammar:
            raise ApiError(400, f"{served.name} is computed elsewhere: no forms of replies.")
        return
    most = served.local.runner.vocabulary
    if beyond := [token for token in settings.logit_bias if not 0 <= token < most]:
        message = f"logit_bias names token {beyond[0]}; {served.name} has tokens 0 to {most - 1}."
        raise ApiError(400, message, "logit_bias")
    if settings.grammar and served.local.grammars:
        served.local.grammars.check(settings.grammar)


FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
"""Why a reply ended, as OpenAI calls it."""


class RunningReply:
    """Writes the reply to one request in a thread; a client that hangs up stops it. `leave` is called at its end. If
    nothing of the caller's is kept, only texts that come with hierchat draft it."""

    def __init__(
        self,
        service: ChatService,
        request: ReplyRequest,
        caller: Caller,
        receive: Receive,
        leave: Callable[[], None],
    ) -> None:
        self._service, self._request, self._caller = service, request, caller
        self._receive = receive
        self._leave = leave
        self.reply: ReplyStream | None = None
        """There once it began."""
        self._load_seconds = 0.0
        """How long it took to load the model."""
        self._stop = threading.Event()
        self._items: asyncio.Queue[Frame | BaseException | None] = asyncio.Queue()

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield the frames as they come, without waiting ones; the last one's phase is "done". Leaving stops the reply.
        Raises what keeps it from beginning, and ApiError if it failed."""
        loop = asyncio.get_running_loop()
        watching = loop.create_task(self._watch())
        threading.Thread(target=self._write, args=(loop,), name="endpoint", daemon=True).start()
        try:
            while (item := await self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if item.phase == "done" and item.finish in ("error", None):
                    raise ApiError(500, item.notice or "The reply could not be written to its end.")
                if item.phase != "waiting":
                    yield item
        finally:
            self._stop.set()
            watching.cancel()
            self._leave()

    async def last(self) -> Frame:
        """Return the last frame. Raises as `frames`, and ApiError if the client hung up before the first one."""
        last: Frame | None = None
        async with aclosing(self.frames()) as frames:
            async for frame in frames:
                last = frame
        if last is None:
            raise ApiError(400, "The request was given up.")
        return last

    @property
    def model(self) -> str:
        return self.reply.model.name if self.reply else ""

    def tokens(self) -> tuple[int, int]:
        """Count the tokens of the prompt, and those of the reply."""
        return (self.reply.prompt_tokens, len(self.reply.statistics.tokens)) if self.reply else (0, 0)

    def usage(self) -> dict[str, Any]:
        """Return `usage` in OpenAI's form, with the figures of drafting under `hierchat`."""
        prompt, written = self.tokens()
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "hierchat": self.figures(),
        }

    def figures(self) -> dict[str, Any]:
        """Return the figures of drafting; empty before the reply began."""
        if self.reply is None:
            return {}
        statistics = self.reply.statistics
        figures = statistics.figures()
        return {
            "drafted": sum(statistics.proposed.values()),
            "accepted": sum(statistics.accepted.values()),
            "tokens_per_forward": figures.tokens_per_forward,
            "tokens_per_second": figures.tokens_per_second,
            "waited_seconds": figures.waited_seconds,
            "speedup": figures.deserved_speedup,
            "sources": dict(figures.shares),
            "seed": figures.seed,
            "load_seconds": self._load_seconds,
        }

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        def tell(item: Frame | BaseException | None) -> None:
            with suppress(RuntimeError):  # the program ends
                loop.call_soon_threadsafe(self._items.put_nowait, item)

        try:
            self._load_seconds = load(self._service, self._request.model, self._stop)
            try:
                with writes(self._stop):
                    for frame in self._service.completions.answer(self._begin, self._stop):
                        tell(frame)
            finally:
                if self._caller.key:
                    with suppress(StoreError):  # the reply is whole without its count
                        self._service.keys.note_use(self._caller.key.id, sum(self.tokens()))
        except Exception as error:
            tell(error)
        else:
            tell(None)

    def _begin(self, served: ServedModel) -> ReplyStream | ReplyRecorder:
        request, service, user = self._request, self._service, self._caller.user_id
        if request.model and served.name != request.model:
            why = f"{served.name} was loaded meanwhile. Ask again."
            raise ApiError(503, why, "model", "model_not_loaded")
        prompt = request.prompt(served)
        settings = request.settings(served, prompt)
        _require_possible(served, settings)
        keeps = self._caller.keeps
        if not keeps:
            served = served.without_user_documents()
        options = ReplyOptions(user, settings, self._stop, learns=keeps)
        self.reply = service.completions.reply_to(served, prompt, options)
        return service.record(self.reply, user, request.question) if keeps else self.reply

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._stop.set()


class EventStream(StreamingResponse):
    """Response of server-sent events. The first event has come already, so that the status is the right one."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)  # who hangs up is watched for elsewhere


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def failure(error: Exception) -> str:
    """Return a server-sent event with the error that ended a reply after its first words."""
    return event(as_api_error(error).body())


async def completion_events(
    running: RunningReply,
    head: Mapping[str, Any],
    include_usage: bool,
    choices: Callable[[Frame, bool], Iterable[dict[str, Any]]],
) -> AsyncGenerator[str, None]:
    """Yield the server-sent events of a streamed completion. `choices` makes those of a frame."""
    first = True
    no_usage = {"usage": None} if include_usage else {}

    def chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**head, "model": running.model, "choices": choices}

    async with aclosing(running.frames()) as frames:
        async for frame in frames:
            for choice in choices(frame, first):
                yield event(chunk([choice]) | no_usage)
            first = False
    if include_usage:
        yield event(chunk([]) | {"usage": running.usage()})
    yield "data: [DONE]\n\n"


async def event_stream(
    events: AsyncGenerator[str, None], tell: Callable[[Exception], str] = failure
) -> EventStream:
    """Return a response that sends these events. Raises what precedes the first; `tell` makes later errors events."""
    try:
        first = await anext(events)
    except StopAsyncIteration:  # the client hung up before anything was written
        first = ""

    async def all_of_them() -> AsyncIterator[str]:
        try:
            yield first
            async for event in events:
                yield event
        except Exception as error:
            yield tell(error)
        finally:
            await events.aclose()

    return EventStream(all_of_them(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


# From an HTTP request to the replies that it asks for, and their books: what every address shares.
MOST_BYTES = 16 * 2**20
T = TypeVar("T", bound=Strict)


async def fields(request: Request, kind: type[T]) -> T:
    """Parse the JSON body of a request into an object of `kind`. Raises ApiError, or pydantic's ValidationError."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise ApiError(413, f"The request is larger than {MOST_BYTES >> 20} MiB.")
        given = await asyncio.to_thread(parse_json, bytes(body))
    except InvalidJson as error:
        raise ApiError(400, str(error)) from error
    except ClientDisconnect as error:
        raise ApiError(400, "The request broke off.") from error
    if not isinstance(given, dict):
        raise ApiError(400, "The request's body has to be a JSON object.")
    return kind.model_validate(given)


class Serving:
    """Admits requests for replies, over one ChatService."""

    def __init__(self, service: ChatService) -> None:
        self.service = service
        self._limits = KeyLimits()

    async def begin(self, request: Request, asked: ReplyRequest) -> RunningReply:
        """Begin a reply within the limits of the caller's key. Raises ApiError."""
        caller: Caller = request.scope[CALLER]
        await asyncio.to_thread(require_here, self.service, asked.model)
        leave = self._limits.enter(caller.key) if caller.key else lambda: None
        return RunningReply(self.service, asked, caller, request.receive, leave)
