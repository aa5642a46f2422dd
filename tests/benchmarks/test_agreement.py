"""A GGUF file on our own engine, judged by transformers in float32 on the same file."""

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
from hierchat.runtime.loaded import Hosted
from hierchat.runtime.prompt import PromptBuilder
from tests.models.conftest import tiny_tokenizer
from tests.testing.architectures import CONFIGS, model_of, write_gguf


def hosted(entry: ModelEntry, backend: None, report: Report) -> Hosted:
    """Without drafts, whose kernels take a minute to compile."""
    loaded = load(entry, "cpu", report, backend)
    engine = LocalEngine(make_runner(loaded).open(), loaded.end_ids, loaded.tokenizer.decode)
    prompts = PromptBuilder(loaded.tokenizer, loaded.context_length)
    return Hosted(entry.name, loaded.model_key, engine, prompts, vanilla_ms=1.0)


def test_every_position_of_the_replies_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(
        model_of(CONFIGS["qwen2, biases"], vocab_size=272),
        tmp_path / "tiny.gguf",
        tiny_tokenizer(extra=("ab",)),
    )
    own = tmp_path / "config" / "models.yaml"
    own.parent.mkdir()
    own.write_text(f"models:\n  tiny: {{source: {{gguf: {{path: {path}}}}}}}\n")
    monkeypatch.setattr(agreement, "load_hosted", hosted)
    monkeypatch.setenv("HIERCHAT_CONFIG", str(own.parent))
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["What?"]}\n{"turns": ["Why?"]}\n')
    found = agreement.measure(
        argparse.Namespace(model="tiny", backend=None, questions=questions, limit=2, max_new_tokens=40)
    )
    assert (found["backend"], found["questions"]) == ("blocks", 2)
    assert 2 < found["positions"] <= 80
    assert found["same_greedy_choice_percent"] > 95
    assert 0 < found["mean_divergence"] <= found["largest_divergence"] < 1e-3
