"""A tiny random model whose replies share forwards, and what it writes for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from hierchat.chat import idle_generation as idle
from hierchat.chat import prompts
from hierchat.chat.idle_generation import Writer
from hierchat.chat.prompts import Script
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.tiny import block_model
from tests.testing.tiny_chat import CONTEXT, END, SYSTEM, Steady, model, ready_slot, tokenizer

PLACES = 4
ASKED = [
    Script(f"k{number}", "kind", turns, 0.7 if number % 2 else 0.0, number)
    for number, turns in enumerate(
        [("What?",), ("List it.", "Shorter."), ("The weekend.", "Sum up: {reply}"), ("x " * 500,), ("Why?",)]
    )
]


@cache
def weights() -> Any:
    return block_model(model(), lambda floats: pack(floats, 8))


def make_served(name: str = "tiny") -> ServedModel:
    """Ready to answer; up to PLACES replies share a forward."""
    runner = CpuRunner(weights(), context_length=CONTEXT, threads=1, sequences=PLACES)
    engine = LocalEngine(runner.open(), {END}, tokenizer().decode, PLACES)
    engine.latency = Steady()
    return ServedModel(name, f"key of {name}", engine, PromptBuilder(tokenizer(), CONTEXT, SYSTEM), 1.0)


def load(name: str, report: Report) -> ServedModel:
    return make_served(name)


@dataclass
class Calm:
    """A machine that has time to spare, unless a test says otherwise."""

    said: str = ""

    def trouble(self) -> str:
        return self.said


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "MOST_TOKENS", 20)
    monkeypatch.setattr(idle, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(prompts, "shipped_scripts", lambda: ASKED)
    monkeypatch.setattr(idle, "shipped_scripts", lambda: ASKED)
    monkeypatch.setattr(idle, "Machine", Calm)


@dataclass
class Writing:
    """One user's, with calls short enough for tests."""

    store: Store
    model: ServedModel = field(default_factory=make_served)
    name: str = "ann"

    def __post_init__(self) -> None:
        self.user = self.store.users.ensure(self.name)

    def writer(self, stop: threading.Event | None = None) -> Writer:
        return Writer(self.store, self.model, self.user, GenerationSettings(), stop or threading.Event())

    def write(
        self, scripts: list[Script], goes_on: Callable[[], bool] = lambda: True, *, keep: bool = True
    ) -> Writer:
        made = self.writer()
        made.write(scripts, goes_on)
        if keep:
            made.keep()
        return made

    def texts(self, scripts: list[Script] = ASKED) -> dict[str, list[tuple[int, ...]]]:
        """The finished replies, by conversation."""
        found = {
            one.key: [
                text.ids
                for text in self.store.generated.texts(self.user, self.model.model_key, one.key)
                if text.done
            ]
            for one in scripts
        }
        return {key: replies for key, replies in found.items() if replies}


@pytest.fixture
def writing(store: Store) -> Writing:
    return Writing(store)


def slot() -> Any:
    return ready_slot(load)
