"""A server that speaks OpenAI's protocol: which models it has, and what it answers as it comes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import Any

import httpx

from hierchat.config import GenerationSettings
from hierchat.models.catalogue import OpenAI
from hierchat.models.progress import ModelError

# What a server elsewhere could not do.


class ServerError(ModelError):
    """The text is for the user."""


class StatusError(ServerError):
    """The server answered with an error. `said`: its own words, empty where it gave none."""

    def __init__(self, text: str, status: int, said: str) -> None:
        super().__init__(text)
        self.status = status
        self.said = said


# The lines of an event stream over HTTP, which can be left at any moment.


LOOK_SECONDS = 0.1
_TIMEOUT = httpx.Timeout(None, connect=10.0)
"""A reply may wait long for its turn."""


def event_lines(
    url: str, headers: dict[str, str], body: dict[str, Any], stop: Event
) -> Generator[str, None, None]:
    """What a POST is answered with, line by line, until it ends or `stop` is set: then the connection is closed,
    whatever the server is at. Raises Refused where it refuses, httpx.HTTPError where the connection breaks."""
    with asyncio.Runner() as runner:
        lines = _lines(url, headers, body)
        try:
            while (line := runner.run(_next(lines, stop))) is not None:
                yield line
        finally:
            runner.run(lines.aclose())


async def _lines(url: str, headers: dict[str, str], body: dict[str, Any]) -> AsyncGenerator[str, None]:
    async with (
        httpx.AsyncClient(timeout=_TIMEOUT, trust_env=not is_here(url)) as client,
        client.stream("POST", url, headers=headers, json=body) as response,
    ):
        if response.is_error:
            await response.aread()
            raise refusal(response)
        async for line in response.aiter_lines():
            yield line


async def _next(lines: AsyncGenerator[str, None], stop: Event) -> str | None:
    """The next line; None at the end, or when it is not waited for any more."""
    coming = asyncio.ensure_future(anext(lines, None))
    while not coming.done():
        await asyncio.wait({coming}, timeout=LOOK_SECONDS)
        if stop.is_set():
            coming.cancel()
    return None if stop.is_set() else coming.result()


def is_here(url: str) -> bool:
    """Whether it leads to this machine: then no proxy stands between."""
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")


def refusal(response: httpx.Response) -> StatusError:
    """What a server says that does not do what it was asked for, with a sentence for the user."""
    said = ""
    try:
        found = response.json()
        error = found.get("error", found)  # vLLM once had no object around it
        said = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    text = said or f"The server answered {response.status_code} {response.reason_phrase}."
    return StatusError(text, response.status_code, said)


_LOOK = httpx.Timeout(30.0, connect=10.0)
_TEXTS = httpx.Timeout(5.0, connect=2.0)
"""A page waits for it."""
_MARK = "<8-hierchat-8>"
"""Stands between runs of tokens."""
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What an answer raises that is JSON of another form, or none."""
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum model length",
    re.IGNORECASE,
)
_KEY = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event of a stream brought."""

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
class ServedModel:
    """A model of the server. `owner`: what `owned_by` says, by which some servers are known; `context`: tokens that it
    holds, 0 where that is not told."""

    name: str
    owner: str = ""
    context: int = 0


class OpenAIClient:
    """One server, and the key that it wants. Every message of an error is for the user; none holds the key."""

    def __init__(self, said: OpenAI) -> None:
        self.url = said.url
        self.host = str(httpx.URL(said.url).host)
        self._key = said.secret
        self._variable = said.key_variable
        self._headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def model(self, name: str | None) -> ServedModel:
        """The model of that name, or the first one. Raises ServerError where it has none such."""
        listed = self._listed()
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
        told = found.get("max_model_len") or found.get("context_length") or found.get("max_context_length")
        context = told if isinstance(told, int) else self._props_context()
        return ServedModel(str(found["id"]), str(found.get("owned_by") or ""), context)

    def chat(self, body: Mapping[str, Any], stop: Event) -> Generator[Chunk, None, None]:
        """Chunks of a reply until its end, or until `stop` is set. Raises ServerError."""
        address, ended, begun = f"{self.url}/v1/chat/completions", False, False
        try:
            with closing(event_lines(address, self._headers, dict(body), stop)) as lines:
                for line in lines:
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    chunk = _chunk(json.loads(data))
                    ended, begun = ended or chunk.finish is not None, True
                    yield chunk
        except StatusError as error:
            raise self._refused(error, str(body["model"])) from error
        except httpx.HTTPError as error:
            raise (self._broke_off() if begun else self._unreachable()) from error
        except _MALFORMED as error:
            raise self._foreign() from error
        if not ended and not stop.is_set():
            raise self._broke_off() if begun else self._foreign()

    def texts(self, model: str, tokens: Sequence[int], lengths: Sequence[int]) -> list[str]:
        """The text of each run of so many tokens of a model, as vLLM tells it. Raises ServerError where it does not.

        One request for all: the runs are sent with a mark between them. That is cheaper than one for each, and than the
        tokens' probabilities, with which a stream would bring their texts."""
        mark = self._told("/tokenize", "tokens", model=model, prompt=_MARK, add_special_tokens=False)
        marked: list[int] = []
        at = 0
        for length in lengths:
            marked += [*(mark if at else ()), *tokens[at : at + length]]
            at += length
        found = str(self._told("/detokenize", "prompt", model=model, tokens=marked)).split(_MARK)
        if len(found) != len(lengths):
            raise self._foreign()
        return found

    def _told(self, path: str, field: str, **asked: Any) -> Any:
        """One field of what a POST is answered with."""
        try:
            answer = httpx.post(
                f"{self.url}{path}",
                json=asked,
                headers=self._headers,
                timeout=_TEXTS,
                trust_env=not is_here(self.url),
            )
            if answer.is_error:
                raise self._refused(refusal(answer), str(asked["model"]))
            return answer.json()[field]
        except httpx.HTTPError as error:
            raise self._unreachable() from error
        except _MALFORMED as error:
            raise self._foreign() from error

    def _listed(self) -> list[dict[str, Any]]:
        try:
            answer = self._get("/v1/models")
            if answer.is_error and answer.status_code != httpx.codes.NOT_FOUND:
                raise self._refused(refusal(answer), "")
            return [one for one in answer.json()["data"] if "id" in one]
        except httpx.HTTPError as error:
            raise self._unreachable() from error
        except _MALFORMED as error:
            raise self._foreign() from error

    def _props_context(self) -> int:
        """What llama.cpp's server tells elsewhere; 0 where it is another server."""
        try:
            told = self._get("/props").json()["default_generation_settings"]["n_ctx"]
            return told if isinstance(told, int) else 0
        except (httpx.HTTPError, *_MALFORMED):
            return 0

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(
            f"{self.url}{path}", headers=self._headers, timeout=_LOOK, trust_env=not is_here(self.url)
        )

    def _refused(self, error: StatusError, model: str) -> ServerError:
        if error.status in _KEY:
            where = f"in {self._variable}" if self._variable else "as `key` of this model in models.yaml"
            if self._key:
                return ServerError(
                    f"The server at {self.url} does not take the key. Put the right one {where}."
                )
            return ServerError(f"The server at {self.url} asks for a key. Put it {where}.")
        if _TOO_LONG.search(error.said):
            return ServerError(
                f"This chat is longer than {model} at {self.url} can take in. Begin a new chat, or set "
                "`context_length` of this model in models.yaml to what the server holds: then old turns are left out."
            )
        if error.status == httpx.codes.NOT_FOUND:
            if not error.said:
                return self._foreign()
            return ServerError(
                f"The server at {self.url} has no model {model!r} now. Load it there, or choose this model here again."
            )
        said = error.said or f"It answered with the status {error.status}."
        return ServerError(f"The server at {self.url} could not do it. {said}")

    def _foreign(self) -> ServerError:
        return ServerError(
            f"What answers at {self.url} does not speak OpenAI's protocol. Check the `url` in models.yaml."
        )

    def _unreachable(self) -> ServerError:
        return ServerError(f"Nothing answers at {self.url}. Start the server there, then try again.")

    def _broke_off(self) -> ServerError:
        return ServerError(f"The server at {self.url} broke off in mid-reply. What had come is kept.")


def _chunk(told: dict[str, Any]) -> Chunk:
    """One event. Raises ServerError where it tells an error, else _MALFORMED."""
    if error := told.get("error"):
        said = str(error.get("message", error) if isinstance(error, dict) else error)
        raise StatusError(said, 500, said)
    usage = told.get("usage") or {}
    choice = (told.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return Chunk(
        text=delta.get("content") or "",
        thought=delta.get("reasoning_content") or delta.get("reasoning") or "",
        finish=choice.get("finish_reason"),
        stop_string=isinstance(choice.get("stop_reason"), str),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    )


# What settings of a reply are called in OpenAI's protocol.


_FIELDS = {
    "temperature": "temperature",
    "max_new_tokens": "max_tokens",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
}
_ALWAYS = ("temperature", "max_new_tokens", "seed")
"""Others are sent where they differ from what is usual: not every server knows them."""


def fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request, from settings by their own names; those that the protocol has no field for are left out."""
    usual = GenerationSettings().model_dump(mode="json")
    return {
        _FIELDS[name]: value
        for name, value in sampling.items()
        if name in _FIELDS and value is not None and (name in _ALWAYS or value != usual[name])
    }
