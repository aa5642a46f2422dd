"""The short form of `python -m tests.faults`: a round of each kind over a real service that is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("kill", "errors", "log", "power")


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("cc"), reason="needs Linux and cc"
)
def test_nothing_that_was_told_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "counts.json"
    short = ("--rounds", "1", "--seconds", "0.5", "--cuts", "8")
    command = [sys.executable, "-m", "tests.faults", *KINDS, *short, "--json", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(out.read_text())["counts"]
    assert [kind for kind in KINDS if counts[kind]["problems"]] == []
    assert sum(count["kills"] for count in counts.values()) == len(KINDS) + 1  # two of "power"
    assert counts["power"]["cuts"] == 8
    assert sum(count["told"].get("asked", 0) for count in counts.values()) > 0
