"""An engine elsewhere that writes what a test says: the contract's properties and `generate`, no more."""

import threading
from collections.abc import Generator
from typing import Any

from hierchat.config import GenerationSettings
from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from tests.testing.tiny_chat import CONTEXT, END, SYSTEM, tokenizer

WORDS = "What is the longest river of this country, and where does it end? " * 8


class ScriptedEngine:
    """Writes `text` and ends, `at_once` tokens a step, whatever is asked."""

    context_length = CONTEXT
    exact: bool | None = None
    backend = "scripted"

    def __init__(
        self, text: str = "Hello there.", words: Any = None, at_once: int = 1, places: int = 1
    ) -> None:
        """`places`: replies that may be written at the same time."""
        self.text = text
        self.words = words or tokenizer()
        self.at_once = at_once
        self.places = places
        self.holds_at: int | None = None
        """It waits before this token until `go` is set."""
        self.stops_at: int | None = None
        """The reader presses Stop before this token."""
        self.go = threading.Event()
        self.began, self.stopped = threading.Event(), threading.Event()
        self.asked: list[tuple[list[int], GenerationSettings]] = []

    @property
    def prompts(self) -> list[str]:
        """What it was asked, as text."""
        return [self.words.decode(ids) for ids, _ in self.asked]

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        assert request.drafter is None  # it drafts for itself, if at all
        settings, stop, begun, read = request.settings, request.stop, request.begun, len(request.prompt_ids)
        self.asked.append((list(request.prompt_ids), settings))
        self.began.set()
        yield Step(prompt_read=read, prompt_tokens=read, width=read - begun)
        ids = [*self.words(self.text, add_special_tokens=False)["input_ids"], END][: settings.max_new_tokens]
        for at in range(begun, len(ids), self.at_once):
            while at == self.holds_at and not self.go.wait(0.01) and not stop.is_set():
                pass
            if at == self.stops_at:
                stop.set()
            tokens = tuple(ids[at : at + self.at_once])
            written = self.words.decode(ids[: at + self.at_once], skip_special_tokens=True)
            finish: Any = None
            if stop.is_set():
                finish = "stopped"
                self.stopped.set()
            elif END in tokens:
                finish = "end"
            elif any(mark in written for mark in settings.stop):
                finish = "stop"
            elif at + self.at_once >= len(ids):
                finish = "length"
            yield Step(tokens, (TARGET,) * len(tokens), width=1, forward_ms=10.0, finish=finish)
            if finish:
                return


def served(engine: ScriptedEngine | None = None, name: str = "elsewhere") -> ServedModel:
    """Ready to answer, with WORDS where nothing else is said."""
    engine = engine or ScriptedEngine(WORDS, at_once=2, places=2)
    return ServedModel(name, f"scripted {name}", engine, PromptBuilder(engine.words, CONTEXT, SYSTEM))


def load(name: str, report: Report) -> ServedModel:
    return served(name=name)
