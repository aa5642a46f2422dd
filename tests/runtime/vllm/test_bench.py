"""`bench vllm --model` starts its servers itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from hierchat.runtime import vllm
from tests.runtime.vllm.conftest import wait_for_end


def test_what_it_started_ends_where_it_cannot_be_measured(
    seen: Path,
    python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(vllm, "_texts", lambda folder, like: ())
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["why"]}\n{"turns": ["where"]}\n')
    given = ["--questions", str(questions), "--limit", "1", "--together", "1", "--methods", "ngram"]
    started = ["--model", str(tmp_path / "My model"), "--python", python, "--vllm=--max-num-seqs 8"]
    assert main(["vllm", *given, *started]) == 2
    assert "must be vLLM with our drafter" in capsys.readouterr().err  # the stand-in has no channel
    found = json.loads(seen.read_text())
    assert found["arguments"][-2:] == ["--max-num-seqs", "8"]
    assert not Path(found["told"]["HIERCHAT_DRAFTER_DB"]).parent.exists()
    wait_for_end(found["pid"])
    wait_for_end(found["worker"])
