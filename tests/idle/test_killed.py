"""A process that is killed in the middle of writing: what it kept stands, and the next one goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hierchat.store import Store

from .conftest import ASKED, Writing

ROOT = Path(__file__).parents[2]


def test_killed_in_the_middle_and_taken_up(tmp_path: Path, writing: Writing) -> None:
    path = tmp_path / "killed.db"
    program = [sys.executable, "-m", "tests.idle.killed", str(path)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        for line in process.stdout:
            tokens, replies = map(int, line.split())
            if replies >= 2 and tokens > 50:  # some replies are finished, others are half there
                break
    finally:
        process.kill()
        process.wait()
    writing.write(ASKED)
    with Store.open(path) as store:
        again = Writing(store, writing.model)
        whole = writing.texts()
        kept = again.texts()
        assert 2 <= sum(map(len, kept.values())) < sum(map(len, whole.values()))
        assert all(replies == whole[key][: len(replies)] for key, replies in kept.items())
        assert (
            again.store.generated.size(again.user).tokens >= tokens - 3
        )  # but for the step in which it was killed
        before = again.store.generated.size(again.user).tokens
        made = again.write(ASKED)
        assert again.texts() == whole
        assert made.tokens == again.store.generated.size(again.user).tokens - before
