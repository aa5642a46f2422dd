"""An engine on another machine, as chat and page see it: the contract's three properties and `generate`, no more."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from tests.testing.tiny_chat import CONTEXT, SYSTEM, tokenizer

WORDS = "What is the longest river of this country, and where does it end? " * 8


class Elsewhere:
    """Answers with WORDS, two tokens a step."""

    context_length = CONTEXT
    places = 2
    exact: bool | None = None
    backend = "elsewhere"
    stops_at: int | None = None
    """The reader presses Stop behind so many tokens."""

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        assert request.drafter is None  # it drafts for itself, if at all
        read = len(request.prompt_ids) - request.begun
        yield Step(prompt_read=read, prompt_tokens=read, forward_ms=5.0)
        words = tokenizer()(WORDS, add_special_tokens=False)["input_ids"]
        words = words[request.begun : request.settings.max_new_tokens]
        for at in range(0, len(words), 2):
            pair = tuple(words[at : at + 2])
            last = at + 2 >= len(words)
            if at == self.stops_at:
                request.stop.set()
            stopped = request.stop.is_set()
            finish: Any = "stopped" if stopped else "length" if last else None
            yield Step(pair, (TARGET,) * len(pair), width=1, forward_ms=10.0, finish=finish)
            if finish:
                return


def served(name: str = "elsewhere") -> ServedModel:
    prompts = PromptBuilder(tokenizer(), CONTEXT, SYSTEM)
    return ServedModel(name, f"remote {name}", Elsewhere(), prompts, vanilla_ms=None)


def load(name: str, report: Report) -> ServedModel:
    return served(name)
