"""`verify` on the default model, from the command line to the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hierchat.cli.main import main


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_verify(tmp_path: Path) -> None:
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.json"
    questions.write_text(
        '{"turns": ["Write a haiku.", "Write it again."]}\n{"turns": ["Name five trees."]}\n'
    )
    drafters = ("default", "adversarial")
    asked = ["verify", "--questions", str(questions), "--max-new-tokens", "24", "--json", str(out)]
    assert main([*asked, "--drafter", ",".join(drafters), "--temperature", "0.8"]) == 0
    written = json.loads(out.read_text())
    assert (written["mismatches"], written["exact"], written["tokens"] > 24) == (0, True, True)
    assert all(written["by_drafter"][name]["tokens_per_forward"] > 1 for name in drafters)
