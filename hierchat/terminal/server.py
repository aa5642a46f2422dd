"""A server that speaks OpenAI's protocol, as what answers: another hierchat, or any other program."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from threading import Event
from types import MappingProxyType
from typing import Any

import httpx

from hierchat.chat.frames import Figures, Frame
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import Said
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.events import event_lines, is_here, refusal
from hierchat.terminal.talk import require

USUAL = "http://127.0.0.1:7860"
_LOOK = httpx.Timeout(2.0)
_ANSWER = httpx.Timeout(30.0)
_FIELDS = {
    "temperature": "temperature",
    "max_new_tokens": "max_tokens",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
"""What a setting is called in a request."""
_ALWAYS = ("temperature", "max_new_tokens", "seed")
"""Others are sent where they differ from what is usual: not every server knows them."""
_FINISH = {"stop": "end", "length": "length", "content_filter": "error"}


class Server:
    """The models of a server."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: with or without /v1. Raises TerminalError where it is none."""
        address = url if "://" in url else f"http://{url}"
        self._url = address.rstrip("/").removesuffix("/v1")
        try:
            parsed = httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise TerminalError(f"{url!r} is no address. One is {USUAL}.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise TerminalError(f"{url!r} is no address. One is {USUAL}.")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.name = ""

    def is_hierchat(self) -> bool:
        """Whether a hierchat answers there and lets us in. Looks for two seconds at most."""
        try:
            if httpx.get(f"{self._url}/health", timeout=_LOOK, trust_env=False).status_code != httpx.codes.OK:
                return False
            return any(one.get("owned_by") == "hierchat" for one in self._models(_LOOK))
        except (httpx.HTTPError, TerminalError):
            return False

    def names(self) -> list[str]:
        try:
            return [str(one["id"]) for one in self._models(_ANSWER)]
        except (httpx.HTTPError, KeyError) as error:
            raise self._unreachable() from error

    def choose(self, name: str) -> None:
        require(name, self.names())
        self.name = name

    def choose_first(self) -> None:
        """The one that the server names first. Raises TerminalError where it has none."""
        names = self.names()
        if not names:
            raise TerminalError(f"No model is loaded at {self._url}. Choose one there.")
        self.name = names[0]

    def complete(
        self, said: Sequence[Said], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        """The reply as it comes. What breaks off later stands in the last frame."""
        body = {
            "model": self.name,
            "messages": [{"role": one.role, "content": one.text} for one in said],
            "stream": True,
            "stream_options": {"include_usage": True},
            **_fields(sampling),
        }
        reply = _Reply(sampling)
        yield Frame("waiting")
        lines = event_lines(f"{self._url}/v1/chat/completions", self._headers, body, stop)
        try:
            for line in lines:
                if line.startswith("data:") and reply.take(line.removeprefix("data:").strip()):
                    yield reply.frame("writing")
        except (httpx.HTTPError, ValueError) as error:
            if not reply.text:
                raise self._unreachable() from error
            reply.finish, reply.notice = "error", f"{self._url} broke off."
        if stop.is_set():
            reply.finish = "stopped"
            if not reply.text:
                return
        yield reply.frame("done")

    def _models(self, timeout: httpx.Timeout) -> list[dict[str, Any]]:
        answer = httpx.get(
            f"{self._url}/v1/models", headers=self._headers, timeout=timeout, trust_env=not is_here(self._url)
        )
        if answer.is_error:
            raise TerminalError(refusal(answer))
        try:
            return [one for one in answer.json()["data"] if isinstance(one, dict)]
        except (ValueError, KeyError, TypeError) as error:
            raise TerminalError(f"What answers at {self._url} does not speak OpenAI's protocol.") from error

    def _unreachable(self) -> TerminalError:
        return TerminalError(
            f"Nothing answers at {self._url}. Start it there (`hierchat serve --api`), or leave --url out."
        )


class _Reply:
    """A reply as its chunks come."""

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        self.text = ""
        self.finish: str | None = None
        self.notice: str | None = None
        self._usage: dict[str, Any] = {}
        self._seed = sampling.get("seed") if sampling.get("temperature") else None
        self._begun = time.monotonic()
        self._first: float | None = None
        self._last = self._begun

    def take(self, data: str) -> bool:
        """One chunk; whether it brought text. Raises ValueError, TerminalError where the server tells an error."""
        if data == "[DONE]" or not data:
            return False
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("no object")
        if error := chunk.get("error"):
            raise TerminalError(str(error.get("message", error) if isinstance(error, dict) else error))
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or [{}]
        if reason := choices[0].get("finish_reason"):
            self.finish = _FINISH.get(reason, "end")
        piece = (choices[0].get("delta") or {}).get("content") or ""
        if piece:
            self._last = time.monotonic()
            self._first = self._first or self._last
            self.text += piece
        return bool(piece)

    def frame(self, phase: Any) -> Frame:
        done = phase == "done"
        return Frame(
            phase,
            text=self.text,
            figures=replace(self._figures(), finish=self.finish) if done else Figures(),
            finish=self.finish if done else None,
            notice=self.notice if done else None,
        )

    def _figures(self) -> Figures:
        """As the server measured them, where it is a hierchat; else by the clock here."""
        usage = self._usage
        tokens = int(usage.get("completion_tokens") or 0)
        first = None if self._first is None else self._first - self._begun
        seconds = self._last - (self._first or self._last)
        return Figures(
            tokens=tokens,
            seconds=seconds,
            first_token_seconds=first,
            tokens_per_second=(tokens - 1) / seconds if tokens > 1 and seconds else None,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            shares=MappingProxyType({}),
            seed=self._seed,
        )


def _fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    usual = GenerationSettings().model_dump(mode="json")
    return {
        _FIELDS[name]: value
        for name, value in sampling.items()
        if name in _FIELDS and value is not None and (name in _ALWAYS or value != usual[name])
    }
