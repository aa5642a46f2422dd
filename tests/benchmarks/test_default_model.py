"""The measuring commands on the default model, from the command line to the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.arms import OWN, PEERS
from hierchat.cli.main import main as hierchat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LINES: list[dict[str, Any]] = [
    {"category": "writing", "turns": ["Write a haiku about a ferry.", "Write it again, word for word."]},
    {"category": "qa", "turns": ["What is a lighthouse for?"]},
    {"category": "rag", "turns": ["Name five trees."]},
]


def run(folder: Path, *command: str, tokens: int = 24) -> tuple[int, dict[str, Any]]:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES))
    flag = "--log" if "log" in command else "--questions"
    out = folder / "out.json"
    code = (hierchat if command[0] == "verify" else main)(
        [*command, flag, str(file), "--max-new-tokens", str(tokens), "--json", str(out)]
    )
    return code, json.loads(out.read_text())


BUILT = (
    "llama.cpp",
    "llama.cpp-lookup",
    "llama.cpp-lookup-10",
    "llama.cpp-draft",
    "flashspec",
    "dejavuu",
    "ik",
    "ik-suffix",
    "ik-ngram-mod",
)
"""Arms that take minutes to build or install: asked where HIERCHAT_BENCH_ALL is set."""


@pytest.mark.large
def test_every_arm_decodes_and_writes_the_same(tmp_path: Path) -> None:
    """The short form of the benchmark. Without a smaller model, the default model assists itself."""
    every = [arm for arm in (*OWN, *PEERS) if arm not in BUILT or "HIERCHAT_BENCH_ALL" in os.environ]
    asked = ("--arms", ",".join(every), "--limit", "1", "--draft", "smollm2-135m")
    code, written = run(tmp_path, "decode", *asked, tokens=12)
    assert code == 0
    absent = {arm["arm"] for arm in written["absent"]}
    assert "hsd" in absent  # no draft model stands below the blocks
    assert absent <= {"hsd", "dejavuu"}  # whose Python may be missing
    arms = {arm["arm"]: arm for arm in written["arms"]}
    assert set(arms) == set(every) - absent
    for name, arm in arms.items():
        assert (arm["questions"], arm["tokens"] > 12) == (1, True), name
        if name != "flashspec":  # whose forwards of several tokens are not those of one, bit by bit
            assert arm["mismatches"] == 0, name


def test_verify(tmp_path: Path) -> None:
    drafters = ("default", "adversarial")
    asked = ("--drafter", ",".join(drafters), "--temperature", "0.8", "--limit", "2")
    code, written = run(tmp_path, "verify", *asked)
    assert (code, written["mismatches"], written["exact"]) == (0, 0, True)
    assert written["tokens"] > 24
    assert all(written["by_drafter"][name]["tokens_per_forward"] > 1 for name in drafters)


@pytest.mark.large
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_all_draft_models_at_every_step_change_no_word(temperature: str, tmp_path: Path) -> None:
    asked = ("--backend", "float32", "--drafter", "stack", "--limit", "2", "--temperature", temperature)
    code, written = run(tmp_path, "verify", *asked)
    assert code == 0
    assert (written["mismatches"], written["tokens"] > 24) == (0, True)
