"""Makers of what ships: replies of plain decoding, lessons of several models, the fit of the acceptance model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.makers import seeds
from benchmarks.makers.seeds import Streams, WorkFile, Writer
from hierchat.chat.prompts import Script
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from tests.testing.tiny import block_model
from tests.testing.tiny_chat import CONTEXT, END, SYSTEM, model, tokenizer

ASKED = [
    Script(f"k{number}", "kind", turns, 0.7 if number % 2 else 0.0, number)
    for number, turns in enumerate(
        [("What?",), ("List it.", "Shorter."), ("The weekend.", "Sum up: {reply}"), ("x " * 500,), ("Why?",)]
    )
]


@pytest.fixture(scope="module")
def runner() -> CpuRunner:
    return CpuRunner(
        block_model(model(), lambda floats: pack(floats, 8)), context_length=CONTEXT, threads=2, sequences=3
    )


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "MOST_TOKENS", 20)


def prompts() -> PromptBuilder:
    return PromptBuilder(tokenizer(), CONTEXT, SYSTEM)


def run(runner: CpuRunner, file: WorkFile, steps: int = 10**6, asked: list[Script] = ASKED) -> None:
    left = [steps]

    def tell(tokens: int, finished: int) -> bool:
        left[0] -= 1
        return left[0] > 0

    with closing(Streams(runner, 2)) as streams:
        Writer(prompts(), {END}, streams, file, tell).write(asked)


def test_replies_are_those_of_plain_decoding(runner: CpuRunner, tmp_path: Path) -> None:
    file = WorkFile(tmp_path / "work.jsonl")
    run(runner, file)
    rows = {row["key"]: row["replies"] for row in file.rows()}
    assert set(rows) == {"k0", "k1", "k2", "k4"}  # the long one does not fit
    engine = LocalEngine(runner.open(), {END}, tokenizer().decode)
    for conversation in ASKED:
        said: list[PromptMessage] = []
        for turn, reply in zip(conversation.turns, rows.get(conversation.key, []), strict=False):
            if "{reply}" in turn:
                turn = turn.replace("{reply}", tokenizer().decode(said[-1].tokens, skip_special_tokens=True))
                said = []
            said.append(PromptMessage("user", turn))
            settings = GenerationSettings(
                temperature=conversation.temperature, seed=conversation.seed, max_new_tokens=20
            )
            steps = engine.generate(GenerationRequest(prompts().build(said, 20, {END}).ids, settings))
            expected = [token for step in steps for token in step.tokens]
            assert reply == expected
            said.append(PromptMessage("assistant", tokenizer().decode(reply), tuple(reply)))
