"""The measuring commands on the default model, from the command line to the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hierchat.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LINES: list[dict[str, Any]] = [
    {"category": "writing", "turns": ["Write a haiku about a ferry.", "Write it again, word for word."]},
    {"category": "qa", "turns": ["What is a lighthouse for?"]},
    {"category": "rag", "turns": ["Name five trees."]},
]


def run(folder: Path, *command: str) -> tuple[int, dict[str, Any]]:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES))
    flag = "--log" if "log" in command else "--questions"
    out = folder / "out.json"
    code = main([*command, flag, str(file), "--max-new-tokens", "24", "--json", str(out)])
    return code, json.loads(out.read_text())


def test_decode(tmp_path: Path) -> None:
    code, written = run(
        tmp_path, "bench", "decode", "--arms", "vanilla,hierchat,transformers", "--limit", "2"
    )
    assert code == 0
    assert written["absent"] == []
    arms = {arm["arm"]: arm for arm in written["arms"]}
    assert all(arm["questions"] == 2 and arm["speedup"] > 0 for arm in arms.values())
    assert arms["hierchat"]["mismatches"] == 0
    assert all(row["arms"]["transformers"][0]["reply"] for row in written["questions"])


def test_log(tmp_path: Path) -> None:
    code, written = run(tmp_path, "bench", "log", "--arms", "vanilla,context+history", "--limit", "1")
    assert code == 0
    assert [arm["mismatches"] for arm in written["arms"]] == [0, 0]


@pytest.mark.parametrize("drafter", ["default", "adversarial"])
def test_verify(drafter: str, tmp_path: Path) -> None:
    code, written = run(tmp_path, "verify", "--drafter", drafter, "--temperature", "0.8", "--limit", "2")
    assert (code, written["mismatches"], written["exact"]) == (0, 0, True)
    assert written["tokens"] > 24
    assert written["tokens_per_forward"] > 1
