"""Talk to a server of OpenAI's protocol: list its models, and stream a reply. Imports `openai` at the first request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from hierchat.config import MOST_TOKENS, GenerationSettings
from hierchat.language import later
from hierchat.models.catalogue import OpenAI
from hierchat.models.progress import ModelError

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk

LOOK_SECONDS = 0.1
"""How soon a reply is given up once nobody wants it any more."""
_CONNECT_SECONDS = 10.0
_LIST_SECONDS = 30.0
MOST_BYTES = 16 << 20
"""The bytes that an answer may have that is read whole, and one line of a stream: beyond, the server is left."""
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What an answer raises that is JSON of another form, or none."""
_PRIVATE = ("x-stainless-", "openai-")
"""Headers of the package that tell of this machine, or of an account elsewhere: they are left out."""


class ServerError(ModelError):
    """A server elsewhere failed or refused; the text is for the user, and never holds a key. `status`: of a refusal."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Content of one event of a stream."""

    text: str = ""
    thought: str = ""
    """Reasoning, where the server takes it out of the text."""
    notice: str = ""
    """What of the request was left out, as a sentence for the user."""
    finish: str | None = None
    """`finish_reason`."""
    stop_string: bool = False
    """Whether a stop string ended it, as far as the server tells."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Of the reply so far, where it is told."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """Model of a server. `owner`: its `owned_by`; `context`: its context window in tokens, 0 if unknown."""

    name: str
    owner: str = ""
    context: int = 0


class OpenAIClient:
    """Talks to one server, as models.yaml names it."""

    def __init__(self, entry: OpenAI) -> None:
        self.url = entry.url
        self.host = urlsplit(entry.url).hostname or ""
        self._key, self._key_variable = entry.secret, entry.key_variable

    def models(self) -> list[dict[str, Any]]:
        """Return what the server says of each of its models; all have an `id`. Raises ServerError."""
        with self._errors(), asyncio.Runner() as runner:
            answer = runner.run(self._request("/v1/models"))
            return [one for one in answer["data"] if "id" in one]

    def model(self, name: str | None) -> RemoteModel:
        """Return the model of that name, or the first one. Raises ServerError where there is none."""
        listed = self.models()
        if not listed:
            raise ServerError(
                f"The server at {self.url} offers no model. Load one there, then choose this one again."
            )
        found = next((one for one in listed if name in (None, one["id"])), None)
        if found is None:
            names = ", ".join(str(one["id"]) for one in listed[:10])
            raise ServerError(
                f"The server at {self.url} has no model {name!r}. It has: {names}. Name one of them as `model` in "
                "models.yaml."
            )
        context = found.get("max_model_len") or found.get("context_length") or found.get("max_context_length")
        if not isinstance(context, int):
            context = self._props_context()
        return RemoteModel(str(found["id"]), str(found.get("owned_by") or ""), context)

    def chat(self, body: Mapping[str, Any], stop: Event) -> Generator[Chunk, None, None]:
        """Yield the chunks of a reply until its end; `stop` closes the connection at once. Raises ServerError."""
        ended = begun = False
        with asyncio.Runner() as runner:
            events = self._events(dict(body))
            try:
                while True:
                    with self._errors(begun=begun):
                        event = runner.run(_unless_stopped(events, stop))
                        if event is None:
                            break
                        chunk = _chunk(event)
                    ended, begun = ended or chunk.finish is not None, True
                    yield chunk
            finally:
                runner.run(events.aclose())
        if not ended and not stop.is_set():
            raise self._error("broke off" if begun else "foreign")

    def _props_context(self) -> int:
        """Return the context window that llama.cpp's server reports at /props; 0 where it is another server."""
        try:
            with self._errors(), asyncio.Runner() as runner:
                answer = runner.run(self._request("/props"))
                context = answer["default_generation_settings"]["n_ctx"]
        except ServerError:
            return 0
        return context if isinstance(context, int) else 0

    @asynccontextmanager
    async def _open(self, seconds: float | None) -> AsyncIterator[AsyncOpenAI]:
        """Open a client that follows no redirect, tries nothing twice, and tells nothing of this machine."""
        import httpx2
        from openai import AsyncOpenAI

        async def private(request: httpx2.Request) -> None:
            for name in list(request.headers):
                if name.startswith(_PRIVATE) or (name == "authorization" and not self._key):
                    del request.headers[name]

        timeout = httpx2.Timeout(seconds, connect=min(_CONNECT_SECONDS, seconds or _CONNECT_SECONDS))
        http = httpx2.AsyncClient(
            timeout=timeout,
            trust_env=self.host not in ("127.0.0.1", "localhost", "::1"),  # no proxy to this machine
            follow_redirects=False,
            event_hooks={"request": [private], "response": [_bound]},
        )
        async with AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=self._key or "none",
            max_retries=0,
            timeout=timeout,
            http_client=http,
        ) as client:
            yield client

    async def _request(self, path: str) -> Any:
        async with self._open(_LIST_SECONDS) as client:
            return await client.get(f"{self.url}{path}", cast_to=object)

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[ChatCompletionChunk, None]:
        """Yield the events of a reply. It may wait long for its turn: only connecting has a limit."""
        body.pop("stream", None)
        async with (
            self._open(None) as client,
            await client.chat.completions.create(
                model=body.pop("model"), messages=body.pop("messages"), stream=True, extra_body=body
            ) as events,
        ):
            async for event in events:
                yield event

    @contextmanager
    def _errors(self, *, begun: bool = False) -> Iterator[None]:
        """Raise ServerError for whatever a request raises. `begun`: whether something of a reply came before."""
        import httpx2
        import openai

        try:
            yield
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, _words(error.response)) from error
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            lies = isinstance(error.__cause__, ValueError)  # of _bound
            raise self._error("foreign" if lies else "broke off" if begun else "unreachable") from error
        except (openai.APIResponseValidationError, *_MALFORMED) as error:
            raise self._error("foreign") from error
        except openai.APIError as error:  # an event of the stream
            said = error.body if isinstance(error.body, str) else error.message
            raise self._refusal(HTTPStatus.INTERNAL_SERVER_ERROR, said) from error

    def _error(self, kind: Literal["unreachable", "foreign", "broke off"]) -> ServerError:
        """Explain what a server did. `foreign`: it speaks another protocol."""
        if kind == "unreachable":
            return ServerError(
                later(f"Nothing answers at {self.url}. Start the server there, then try again.")
            )
        if kind == "broke off":
            return ServerError(
                later(f"The server at {self.url} broke off in mid-reply. What had come is kept.")
            )
        return ServerError(
            later(f"What answers at {self.url} does not speak OpenAI's protocol. Check its `url`.")
        )

    def _refusal(self, status: int, said: str) -> ServerError:
        """Explain that a server answered with an error. `said`: its own words; empty if it gave none."""
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            where = (
                f"in {self._key_variable}" if self._key_variable else "as `key` of this model in models.yaml"
            )
            if self._key:
                return ServerError(
                    later(f"The server at {self.url} does not take the key. Put the right one {where}.")
                )
            return ServerError(later(f"The server at {self.url} asks for a key. Put it {where}."))
        if status < HTTPStatus.BAD_REQUEST or (status == HTTPStatus.NOT_FOUND and not said):
            return self._error("foreign")
        said = said or later(f"It answered with the status {status}.")
        return ServerError(f"The server at {self.url} could not do it. {said}", status)


async def _bound(response: httpx2.Response) -> None:
    """Let an answer without end, or a line of it, break off in place of filling the memory."""
    pieces, streams = response.aiter_bytes, "event-stream" in response.headers.get("content-type", "")

    async def bounded(chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        size = 0
        async for piece in pieces(chunk_size):
            ends = piece.rfind(b"\n") if streams else -1
            size = size + len(piece) if ends < 0 else len(piece) - ends
            if size > MOST_BYTES:
                raise ValueError("an answer that is too long")
            yield piece

    response.aiter_bytes = bounded  # type: ignore[method-assign]


async def _unless_stopped(
    events: AsyncGenerator[ChatCompletionChunk, None], stop: Event
) -> ChatCompletionChunk | None:
    """Wait for the next event; None at the end, or when it is not wanted any more."""
    coming = asyncio.ensure_future(anext(events, None))
    while not coming.done():
        await asyncio.wait({coming}, timeout=LOOK_SECONDS)
        if stop.is_set():
            coming.cancel()
    return None if stop.is_set() else coming.result()


def _words(response: httpx2.Response) -> str:
    try:
        found = response.json()
        error = found.get("error", found)  # vLLM once had no object around it
        return str(error["message"] if isinstance(error, dict) else error)
    except _MALFORMED:
        return ""


def _chunk(event: ChatCompletionChunk) -> Chunk:
    """Read one event. Raises one of _MALFORMED where it has another form."""
    if not event.choices and not event.usage:
        return Chunk()
    usage, choice = event.usage, event.choices[0] if event.choices else None
    delta = choice.delta if choice else None
    thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    return Chunk(
        text=str((delta and delta.content) or ""),
        thought=str(thought or ""),
        finish=choice.finish_reason if choice else None,
        stop_string=isinstance(getattr(choice, "stop_reason", None), str),
        prompt_tokens=_count(usage and usage.prompt_tokens),
        completion_tokens=_count(usage and usage.completion_tokens),
    )


def _count(told: object) -> int | None:
    return told if type(told) is int and 0 <= told <= MOST_TOKENS else None


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "seed", "stop")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_FIELDS = {name: name for name in _SAMPLING + _PENALTIES} | {"max_new_tokens": "max_tokens"}
_ALWAYS = ("temperature", "max_new_tokens", "seed")
"""Others are sent where they differ from what is usual: not every server knows them."""


def request_fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request for these settings; those that the protocol has no field for are left out."""
    usual = GenerationSettings().model_dump(mode="json")
    return {
        _FIELDS[name]: value
        for name, value in sampling.items()
        if name in _FIELDS and value is not None and (name in _ALWAYS or value != usual[name])
    }
