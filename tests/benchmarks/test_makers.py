"""Makers of what ships: replies of plain decoding, lessons of several models, the fit of the acceptance model."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.makers import seeds
from benchmarks.makers.fit import Batch, Net, SampledNet
from benchmarks.makers.lessons import lesson_of
from benchmarks.makers.seeds import Streams, WorkFile, Writer
from hierchat.chat.prompts import Script
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import FITTED, sampling_features
from hierchat.drafting.growing.acceptance_model import score
from hierchat.drafting.growing.kernel_arrays import CANDIDATES, AcceptanceModel
from hierchat.drafting.source import Source
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from tests.drafting.databases import World
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
            steps = engine.generate(prompts().build(said, 20, {END}).ids, settings)
            expected = [token for step in steps for token in step.tokens]
            assert reply == expected
            said.append(PromptMessage("assistant", tokenizer().decode(reply), tuple(reply)))


def test_an_interrupted_run_goes_on(runner: CpuRunner, tmp_path: Path) -> None:
    whole, file = WorkFile(tmp_path / "whole.jsonl"), WorkFile(tmp_path / "work.jsonl")
    run(runner, whole)
    run(runner, file, steps=25)
    done = {row["key"] for row in file.rows()}
    assert 0 < len(done) < 4
    with file.path.open("a") as half:
        half.write('{"key": "k4", "repl')  # what a crash leaves
    again = WorkFile(file.path)
    assert {row["key"] for row in again.rows()} == done
    again.mend()
    run(runner, again, asked=[one for one in ASKED if one.key not in done])
    by_key = [sorted(map(json.dumps, one.rows())) for one in (whole, again)]
    assert by_key[0] == by_key[1]


def test_chances_are_those_of_the_kernel() -> None:
    generator = np.random.default_rng(0)
    world = World(
        [1, 2, 3], [Source.of([[1, 2, 3, int(token), 5] for token in generator.integers(4, 12, 40)])]
    )
    with np.load(FITTED) as file:
        net = Net.of(dict(file))
    sampled = SampledNet(net)
    with torch.no_grad():
        for part in (sampled.heat, sampled.swing, sampled.none_heat):
            part.normal_(0, 0.05)
    warm = sampling_features(GenerationSettings(temperature=0.8, top_p=0.9))
    places = world.along([])
    places.keys[0] = np.uint64(12345)
    arrays, added = net.arrays(), sampled.arrays()
    model = AcceptanceModel(**arrays)
    model = model._replace(
        score=model.score + warm @ added["heat"], none=model.none + warm @ added["none_heat"]
    )
    score(places, 0, model, warm @ added["swing"])
    parts = lesson_of(places, int(places.tokens[0, 0]), warm)
    lesson = Batch(*(torch.from_numpy(np.array([part])) for part in parts))
    found = torch.softmax(sampled(lesson._replace(inputs=lesson.inputs.float())), 1)[0].detach().numpy()
    count = int(places.candidates[0])
    assert 1 < count < CANDIDATES
    np.testing.assert_allclose(found[:count], places.chances[0, :count], rtol=0.01)
