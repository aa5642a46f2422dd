"""Which runner a loaded model of transformers gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierchat.drafting.draft_tree import LatencyCurve
from hierchat.engine.backends import make_runner
from hierchat.engine.latency import measure
from hierchat.engine.torch.plain import PlainRunner
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from hierchat.models.load.check import expected_step
from tests.engine.test_fallback import loaded
from tests.testing.families import tiny_family


def test_a_recurrent_model_gets_the_plain_runner() -> None:
    runner = make_runner(loaded(tiny_family("mamba")))
    assert isinstance(runner, PlainRunner)
    assert not runner.drafts
    curve = LatencyCurve()
    measure(curve, runner.open(), seconds=0.0)
    assert curve.step_ms(0)[0] > 0


def fails(*given: Any, **named: Any) -> None:
    raise TypeError("an argument that nobody expected")


@pytest.mark.parametrize(
    ("kind", "part", "broken"),
    [("gemma2", "TorchRunner.run", fails), ("lfm2", "invariant", lambda *given, **named: False)],
    ids=["fails over slots", "has states whose rows are not exact"],
)
def test_one_that_cannot_draft_answers_plainly(
    kind: str, part: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hierchat.engine.torch.torch_runner.{part}", broken)
    runner = make_runner(replace(loaded(tiny_family(kind)), model_key="not tested before"))
    assert isinstance(runner, PlainRunner)
    assert runner.open().forward([5, 6], [-1, 0])[1].any()


@pytest.mark.parametrize(
    ("kind", "backend", "expected"),
    [
        ("qwen3", None, "kernels"),
        ("qwen3", "float16", "slots"),
        ("gpt_oss", None, "kernels"),
        ("cohere2", None, "slots"),
        ("lfm2", None, "slots"),
        ("lfm2_moe", None, "slots"),
        ("mamba2", None, "plain"),
        ("brand_new", None, "plain"),
        (None, None, None),
    ],
)
def test_the_step_is_told_before_anything_is_here(kind: Any, backend: Any, expected: Any) -> None:
    source = {"gguf": {"repo": "some/model", "file": "model.gguf"}}
    entry = ModelEntry.model_validate({"name": "it", "source": source, "kind": kind})
    assert expected_step(entry, "cpu", backend) == expected
    if kind == "lfm2_moe":
        assert expected_step(entry, "cuda", backend) == "plain"


def test_a_folder_is_asked_itself(tmp_path: Path) -> None:
    entry = ModelEntry(
        name="it", source=ModelSource(folder=Folder(path=tmp_path)), blocks=8, context_length=None
    )
    assert expected_step(entry, "cpu") is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "cohere2"}))
    assert expected_step(entry, "cpu") == "slots"
