"""Generate over a server that speaks OpenAI's protocol: no forwards, no sources, no speed-up are known."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import TARGET, Finish, GenerationRequest, Step
from hierchat.engine.remote.openai_client import Chunk, OpenAIClient, RemoteModel, ServerError, request_fields
from hierchat.reasoning import CLOSES, OPENS, nearest_effort

NOT_TAKEN = (400, 422)
"""Statuses of a server that does not know a field, or its value."""
LEFT_OUT = "The server at {url} does not let one choose how much this model thinks, so that was left out."
_TEMPLATE = ("vllm", "llamacpp")
"""Who owns the models of servers that hand variables to a model's template."""
_SWITCH: Mapping[Reasoning, bool] = {"off": False, "on": True}
_EFFORTS: Mapping[Reasoning, str] = {"low": "low", "medium": "medium", "high": "high"}
_OF_HIERCHAT: Mapping[Reasoning, str] = {"off": "none", **_EFFORTS}
_ALWAYS_THINKS = re.compile(r"gpt.?oss", re.IGNORECASE)
"""Models that can be asked for an effort alone, by their names."""


def choices(owner: str, model: str) -> tuple[Reasoning, ...]:
    """Return how much a model can be asked to think, from the least on, by the kind of server (`owner`)."""
    return tuple(_values(owner, model))


def asked(owner: str, model: str, chosen: Reasoning) -> dict[str, Any]:
    """Return the fields of a request for the chosen reasoning, or the nearest to it; none where nothing was chosen."""
    if not chosen:
        return {}
    values = _values(owner, model)
    value = values[nearest_effort(chosen, tuple(values))]
    if values is _SWITCH:
        return {"chat_template_kwargs": {"enable_thinking": value, "thinking": value}}
    if owner == "llamacpp":
        return {"chat_template_kwargs": {"reasoning_effort": value}}
    return {"reasoning_effort": value}


def _values(owner: str, model: str) -> Mapping[Reasoning, Any]:
    if owner in _TEMPLATE and not _ALWAYS_THINKS.search(model):
        return _SWITCH
    return _OF_HIERCHAT if owner == "hierchat" else _EFFORTS


class Thoughts:
    """Put reasoning that a server sends apart into the text, in front, as models themselves write it."""

    def __init__(self) -> None:
        self._open = False

    def text(self, thought: str, text: str) -> str:
        """Return the text to add to the reply for a piece of reasoning and a piece of text."""
        out = ""
        if thought:
            out = thought if self._open else f"{OPENS}\n{thought}"
            self._open = True
        return out + (self.end() + text if text else "")

    def end(self) -> str:
        """Return the mark that closes the thought, if it is open."""
        was, self._open = self._open, False
        return f"\n{CLOSES}\n\n" if was else ""


BYTES = 3
"""Bytes of text that count as one token: fewer than in most languages, so that what is thought to fit does fit."""
MOST_CHARACTERS = 64
"""The characters that a reply may have for each token that was asked for: a server that writes on and on is left."""
NOTHING = 0
"""A token of a reply; its text comes beside it (Step.text)."""


class TextTokens:
    """Stand-in for a remote model's tokenizer: turns a text into numbers of three bytes each, and back."""

    chat_template = ""
    added_tokens_decoder: Mapping[int, Any] = {}
    """Empty: no control token is known here."""

    def __call__(
        self, text: str, add_special_tokens: bool = False, verbose: bool = True
    ) -> dict[str, list[int]]:
        raw = text.encode("utf-8", "replace")
        # The byte before says how many follow, zeros included.
        return {
            "input_ids": [int.from_bytes(b"\x01" + raw[at : at + BYTES]) for at in range(0, len(raw), BYTES)]
        }

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Return the text; nothing for tokens of a reply."""
        raw = b"".join(number.to_bytes((number.bit_length() + 7) // 8)[1:] for number in ids)
        return raw.decode("utf-8", "replace")

    def get_vocab(self) -> dict[str, int]:
        """Return nothing: no token has a name here."""
        return {}

    def apply_chat_template(
        self, chat: Sequence[Mapping[str, Any]], tokenize: bool = True, **others: Any
    ) -> Any:
        """Return the messages themselves, as JSON: the server has the template. Tools are left out."""
        said = json.dumps(list(chat), ensure_ascii=False)
        return self(said) if tokenize else said


PLACES = 32
"""Replies that are asked for at once; what is beyond its own limit waits at the server."""
_REPEAT_PENALTY = ("llamacpp", "organization_owner")
"""Who owns the models of llama.cpp's server and of LM Studio: there the repetition penalty has another name."""


class RemoteEngine:
    """Ask one model of one server. Each reply is a request of its own, so a server that was gone is found again."""

    exact: bool | None = None
    places = PLACES

    def __init__(self, server: OpenAIClient, model: RemoteModel, context_length: int) -> None:
        """Take a server and its model; `context_length`: 0 where it is not known."""
        self._server = server
        self._model = model
        self.context_length = context_length
        self.backend = f"the server at {server.url}"

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        """Yield the steps of a reply to TextTokens. Raises ServerError."""
        settings, stop = request.settings, request.stop
        more, counting = self._asking(request.user)
        body = self._body(request.prompt_ids, settings) | more
        thinking = asked(self._model.owner, self._model.name, settings.reasoning)
        thoughts, last = Thoughts(), time.monotonic()
        finish: Finish = "end"
        came, prompt, room = False, 0, MOST_CHARACTERS * settings.max_new_tokens
        for chunk in self._chunks(body, thinking, stop):
            if chunk.notice:
                yield Step(notice=chunk.notice)
                continue
            if chunk.finish:
                finish = "stop" if chunk.stop_string else "length" if chunk.finish == "length" else "end"
            prompt = chunk.prompt_tokens or prompt
            text = thoughts.text(chunk.thought, chunk.text)
            room -= len(text)
            if not text and not (chunk.completion_tokens and came):
                continue
            now = time.monotonic()
            spent, last = (now - last) * 1e3, now
            if not came:
                came = True
                yield Step(forward_ms=spent, prompt_read=prompt, prompt_tokens=prompt)
                spent = 0.0
            told = chunk.completion_tokens
            yield from counting.take(text, told and min(told, settings.max_new_tokens), spent)
            if room < 0:
                finish = "length"
                break
        yield from counting.rest()
        ended: Finish = "stopped" if stop.is_set() else finish
        yield Step(prompt_read=prompt, prompt_tokens=prompt, text=thoughts.end(), finish=ended)

    def _asking(self, user: int | None) -> tuple[dict[str, Any], Counted]:
        """Return further fields of the request, and the object that makes steps of the answer."""
        return {}, Counted()

    def _chunks(
        self, body: dict[str, Any], thinking: dict[str, Any], stop: threading.Event
    ) -> Iterator[Chunk]:
        """Yield the chunks of a reply; where the server refuses the fields `thinking`, ask again without them."""
        try:
            yield from self._server.chat(body | thinking, stop)
        except ServerError as error:
            if not thinking or error.status not in NOT_TAKEN:
                raise
            for number, chunk in enumerate(self._chunks(body, {}, stop)):
                if not number:  # that is why the first request was refused
                    yield Chunk(notice=LEFT_OUT.format(url=self._server.url))
                yield chunk

    def _body(self, prompt_ids: Sequence[int], settings: GenerationSettings) -> dict[str, Any]:
        asked = request_fields(settings.model_dump(mode="json"))
        asked["max_tokens"] = settings.max_new_tokens
        if self.context_length:
            asked["max_tokens"] = max(1, min(asked["max_tokens"], self.context_length - len(prompt_ids)))
        if self._model.owner in _REPEAT_PENALTY and "repetition_penalty" in asked:
            asked["repeat_penalty"] = asked.pop("repetition_penalty")
        usage = {"include_usage": True}
        if self._model.owner == "vllm":  # with each piece: it may hold several tokens
            usage["continuous_usage_stats"] = True
        return {
            "model": self._model.name,
            "messages": json.loads(TextTokens().decode(prompt_ids)),
            "stream": True,
            "stream_options": usage,
            **asked,
        }


class Counted:
    """Makes steps of the pieces of a reply; counts the server's tokens, else pieces. `begun`: tokens known before."""

    def __init__(self, begun: int = 0) -> None:
        self._pieces = 0
        self._count = begun
        self._late = 0.0

    def take(self, text: str, tokens: int | None, spent: float) -> Iterator[Step]:
        """Yield steps for `text`, which came after `spent` ms. `tokens`: of the reply so far, if the server tells."""
        self._pieces += bool(text)
        # A piece is a token, unless the server tells.
        new = max(tokens - self._count, 0) if tokens is not None else 1
        if self._pieces == 2 and text:
            spent *= 2  # nothing tells the first token's time from reading: it is taken to be the second's
        self._count += new
        self._late += spent
        if new:
            spent, self._late = self._late, 0.0
        yield Step((NOTHING,) * new, (TARGET,) * new, forward_ms=spent if new else 0.0, text=text)

    def rest(self) -> Iterator[Step]:
        """Yield steps for the tokens that are missing at the end."""
        yield from ()
