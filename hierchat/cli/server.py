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
from hierchat.cli.talk import TerminalError, require
from hierchat.engine.remote import openai_engine
from hierchat.engine.remote.openai_client import StatusError, event_lines, fields, is_here, refusal
from hierchat.reasoning import split_reasoning
from hierchat.runtime.prompt import Said

USUAL = "http://127.0.0.1:7860"
_LOOK = httpx.Timeout(2.0)
_ANSWER = httpx.Timeout(30.0)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What an answer raises that is JSON of another form, or none."""
_FINISH = {"stop": "end", "length": "length", "content_filter": "error"}


class ServerModel:
    """The models of a server."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: with or without /v1. Raises TerminalError where it is none."""
        address = url if "://" in url else f"http://{url}"
        self.url = address.rstrip("/").removesuffix("/v1")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise TerminalError(f"{url!r} is no address. One is {USUAL}.") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise TerminalError(f"{url!r} is no address. One is {USUAL}.")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.name = self._owner = ""

    def is_hierchat(self) -> bool:
        """Whether a hierchat answers there and lets us in. Looks for two seconds at most."""
        try:
            if httpx.get(f"{self.url}/health", timeout=_LOOK, trust_env=False).status_code != httpx.codes.OK:
                return False
            return any(one.get("owned_by") == "hierchat" for one in self._models(_LOOK))
        except (httpx.HTTPError, TerminalError):
            return False

    def names(self) -> list[str]:
        return [str(one["id"]) for one in self._listed()]

    @property
    def place(self) -> str:
        return f" at {self.url}"

    def about(self, name: str) -> str:
        return ""

    def choose(self, name: str) -> None:
        models = {str(one["id"]): one for one in self._listed()}
        require(name, list(models))
        self._take(models[name])

    def choose_any(self) -> None:
        """The one that is loaded there, where that is told, else the first. Raises TerminalError where it has none."""
        models = self._listed()
        if not models:
            raise TerminalError(f"There is no model at {self.url}.")
        self._take(next((one for one in models if one.get("loaded")), models[0]))

    def _take(self, model: Mapping[str, Any]) -> None:
        self.name, self._owner = str(model["id"]), str(model.get("owned_by") or "")

    def complete(
        self, said: Sequence[Said], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        """The reply as it comes. What breaks off later stands in the last frame."""
        body = {
            "model": self.name,
            "messages": [{"role": one.role, "content": _content(one)} for one in said],
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields(sampling),
        }
        thinking = openai_engine.asked(self._owner, self.name, sampling.get("reasoning") or "")
        reply = _StreamedReply(sampling)
        yield Frame("waiting")
        try:
            try:
                yield from self._written(body | thinking, reply, stop)
            except StatusError as error:
                if not thinking or error.status not in openai_engine.NOT_TAKEN:
                    raise
                reply.notice = openai_engine.LEFT_OUT.format(url=self.url)
                yield from self._written(body, reply, stop)
        except StatusError as error:
            raise _refused(error) from error
        except (httpx.HTTPError, *_MALFORMED) as error:
            if not reply.text:
                raise (
                    self._unreachable() if isinstance(error, httpx.HTTPError) else self._foreign()
                ) from error
            reply.finish, reply.notice = "error", f"{self.url} broke off in mid-reply."
        if stop.is_set():
            reply.finish = "stopped"
            if not reply.text:
                return
        try:
            last = reply.frame("done")
        except _MALFORMED as error:
            raise self._foreign() from error
        yield last

    def _written(
        self, body: dict[str, Any], reply: _StreamedReply, stop: Event
    ) -> Generator[Frame, None, None]:
        for line in event_lines(f"{self.url}/v1/chat/completions", self._headers, body, stop):
            if line.startswith("data:") and reply.take(line.removeprefix("data:").strip()):
                yield reply.frame("writing")

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return self._models(_ANSWER)
        except httpx.HTTPError as error:
            raise self._unreachable() from error

    def _models(self, timeout: httpx.Timeout) -> list[dict[str, Any]]:
        answer = httpx.get(
            f"{self.url}/v1/models", headers=self._headers, timeout=timeout, trust_env=not is_here(self.url)
        )
        if answer.is_error:
            raise _refused(refusal(answer))
        try:
            return [one for one in answer.json()["data"] if "id" in one]
        except _MALFORMED as error:
            raise self._foreign() from error

    def _foreign(self) -> TerminalError:
        return TerminalError(f"What answers at {self.url} does not speak OpenAI's protocol.")

    def _unreachable(self) -> TerminalError:
        return TerminalError(
            f"Nothing answers at {self.url}. Start a server there, such as hierchat with --api, or leave --url out."
        )


def _content(said: Said) -> str:
    """Of an earlier reply the answer alone: what was thought before it is no part of a prompt."""
    return split_reasoning(said.text).answer or said.text if said.role == "assistant" else said.text


class _StreamedReply:
    """A reply as its chunks come."""

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        self.text = ""
        self._thoughts = openai_engine.Thoughts()
        self.finish: str | None = None
        self.notice: str | None = None
        self._usage: dict[str, Any] = {}
        self._seed = sampling.get("seed") if sampling.get("temperature") else None
        self._begun = time.monotonic()
        self._first: float | None = None
        self._last = self._begun

    def take(self, data: str) -> bool:
        """One chunk; whether it brought text. Raises TerminalError where the server tells an error, else _MALFORMED."""
        if data == "[DONE]" or not data:
            return False
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise TerminalError(str(error.get("message", error) if isinstance(error, dict) else error))
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or [{}]
        if reason := choices[0].get("finish_reason"):
            self.finish = _FINISH.get(reason, "end")
        delta = choices[0].get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        piece = self._thoughts.text(str(thought), str(delta.get("content") or ""))
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
        """As the server measured them, where it is a hierchat; else by the clock here."""
        told = self._usage.get("hierchat") or {}
        tokens = int(self._usage.get("completion_tokens") or 0)
        seconds = self._last - (self._first or self._last)
        rate = told.get("tokens_per_second") or ((tokens - 1) / seconds if tokens > 1 and seconds else None)
        speedup, drafted = told.get("speedup"), told.get("drafted")
        return Figures(
            tokens=tokens,
            seconds=tokens / rate if rate else seconds,
            first_token_seconds=None if self._first is None else self._first - self._begun,
            tokens_per_second=rate,
            total_seconds=self._last - self._begun,
            waited_seconds=told.get("waited_seconds"),
            tokens_per_forward=told.get("tokens_per_forward"),
            acceptance_rate=told["accepted"] / drafted if drafted else None,
            speedup=speedup,
            baseline="measured" if speedup else None,
            baseline_tokens_per_second=rate / speedup if rate and speedup else None,
            prompt_tokens=int(self._usage.get("prompt_tokens") or 0),
            shares=MappingProxyType(dict(told.get("sources") or {})),
            seed=next(iter(told.get("seeds") or []), self._seed),
        )


def _refused(error: StatusError) -> TerminalError:
    if error.status == httpx.codes.UNAUTHORIZED:
        return TerminalError(
            "The server asks for a key, and knows none such. Name one with --key or in HIERCHAT_KEY."
        )
    return TerminalError(str(error))
