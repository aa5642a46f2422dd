"""The same GGUF file on another program: its tokens, and the choices of transformers in float32."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import agreement
from hierchat.engine.backends import make_runner
from hierchat.engine.local import LocalEngine
from hierchat.models.catalogue import ModelEntry
from hierchat.models.load.load_model import load
from hierchat.models.progress import Report
from hierchat.runtime.loading import LoadOptions
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from tests.models.conftest import tiny_tokenizer
from tests.testing.architectures import CONFIGS, model_of, write_gguf


@pytest.fixture
def path(places: Path) -> Path:
    """A GGUF file that the catalogue calls tiny."""
    model = model_of(CONFIGS["qwen2, biases"], vocab_size=272)
    path = write_gguf(model, places / "tiny.gguf", tiny_tokenizer(extra=("ab",)))
    (places / "CONFIG").mkdir()
    (places / "CONFIG" / "models.yaml").write_text(
        f"models:\n  tiny: {{source: {{gguf: {{path: {path}}}}}}}\n"
    )
    return path


def served(entry: ModelEntry, options: LoadOptions, report: Report) -> ServedModel:
    """Without drafts, whose kernels take a minute to compile."""
    loaded = load(entry, "cpu", report, options.backend)
    engine = LocalEngine(make_runner(loaded).open(), loaded.end_ids, loaded.tokenizer.decode)
    prompts = PromptBuilder(loaded.tokenizer, loaded.context_length)
    return ServedModel(entry.name, loaded.model_key, engine, prompts, vanilla_ms=1.0)


@pytest.mark.usefixtures("path")
def test_every_position_of_the_replies_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "load_served_model", served)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["What?"]}\n{"turns": ["Why?"]}\n')
    found = agreement.measure(
        argparse.Namespace(model="tiny", backend=None, questions=questions, limit=2, max_new_tokens=40)
    )
    assert (found["backend"], found["questions"]) == ("blocks", 2)
    assert 2 < found["positions"] <= 80
    assert found["same_greedy_choice_percent"] > 95
    assert 0 < found["mean_divergence"] <= found["largest_divergence"] < 1e-3
