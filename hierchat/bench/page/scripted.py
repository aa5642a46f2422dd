"""What answers in place of a model: always the same reply, at an even pace, a few characters a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.step import TARGET, Step
from hierchat.models.progress import Report
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import PromptBuilder

MODEL = "scripted"
WINDOW = 1_000_000
STEP_SECONDS = 0.04
STEP_CHARACTERS = 12


class Characters:
    """A tokenizer whose tokens are characters; none of them is a mark."""

    chat_template = ""
    added_tokens_decoder: Mapping[int, Any] = {}

    def get_vocab(self) -> dict[str, int]:
        """No more than what a chat's marks are looked up in."""
        return {}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """The text of tokens."""
        return "".join(map(chr, tokens))

    def apply_chat_template(self, chat: Sequence[dict[str, str]], *, tokenize: bool = True, **_: Any) -> Any:
        """Messages one below the other."""
        text = "\n".join(f"{message['role']}: {message['content']}" for message in chat)
        return self(text) if tokenize else text


class ScriptedEngine:
    """An engine elsewhere, as chat and page see it: it drafts nothing and measures nothing."""

    context_length = WINDOW
    exact: bool | None = None
    backend = MODEL
    places = 1

    def __init__(self, reply: str) -> None:
        self._tokens = tuple(map(ord, reply))

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        *,
        padded: bool = True,
        begun: int = 0,
        user: int | None = None,
    ) -> Generator[Step, None, None]:
        """The reply, whatever was asked."""
        read = len(prompt_ids) - begun
        yield Step(prompt_read=read, prompt_tokens=read)
        for at in range(begun, len(self._tokens), STEP_CHARACTERS):
            began = time.perf_counter()
            stopped = stop is not None and stop.wait(STEP_SECONDS)
            tokens = self._tokens[at : at + STEP_CHARACTERS]
            ended = at + STEP_CHARACTERS >= len(self._tokens)
            yield Step(
                tokens,
                (TARGET,) * len(tokens),
                width=1,
                forward_ms=(time.perf_counter() - began) * 1e3,
                finish="stopped" if stopped else "end" if ended else None,
            )
            if stopped:
                return


def loader(reply: str) -> Any:
    """What a ModelHost loads."""

    def load(name: str, report: Report) -> Hosted:
        return Hosted(
            name, MODEL, ScriptedEngine(reply), PromptBuilder(Characters(), WINDOW), vanilla_ms=None
        )

    return load
