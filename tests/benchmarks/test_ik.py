"""ik_llama.cpp: its own benchmark, asked one prompt at a time; here a script that prints what the program prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.environment import ArmError
from benchmarks.peers.ik import FOLDER, IkArm
from hierchat.config import GenerationSettings
from tests.testing.tiny_chat import served

STAND_IN = """#!{python}
import json, sys
flags = sys.argv[1:]
if flags == ["--version"]:
    sys.exit(print("version: 4711 (abc)", file=sys.stderr))
value = lambda name: flags[flags.index(name) + 1]
(row,) = [json.loads(line) for line in open(value("--prompts"), encoding="utf-8")]
if value("-s") == "13":
    sys.exit("failed to load model")
print("llama_new_context_with_model: n_ctx = 9")
drafted = "--spec-type" in flags
print(json.dumps({{
    "row_type": "attempt",
    "timing": {{"prompt_s": 0.25, "decode_s": 0.5, "total_s": 0.75}},
    "tokens": {{"prompt": 3, "generated": 4}},
    "speculative": {{"accepted_tokens": 2 if drafted else 0}},
    "quality": {{"ok": value("-s") != "14", "error": "prompt does not fit into context"}},
    "prompt": row["prompt"],
    "output": row["prompt"],
}}))
print(json.dumps({{"row_type": "summary"}}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-in in bin/, named as the user names it."""
    program = tmp_path / "bin" / "llama-spec-bench"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def asked(method: str, seed: int = 0) -> tuple[list[int], float, float, int | None]:
    one = served()
    arm = IkArm(f"ik-{method}", method, Path("model.gguf"), one, threads=2)
    assert arm.versions == {"llama-spec-bench": "4711 (abc)"}
    prompt = one.prompts.tokenizer("one two three four")["input_ids"]
    found = arm.answer(prompt, GenerationSettings(max_new_tokens=9, seed=seed))
    assert found.reply == prompt[:4]
    return found.reply, found.seconds, found.first_seconds, found.forwards


@pytest.mark.parametrize(("method", "forwards"), [("", 4), ("suffix", 2), ("ngram-mod", 2)])
def test_its_own_figures_count(folder: Path, method: str, forwards: int) -> None:
    assert asked(method)[1:] == (0.5, 0.25, forwards)


@pytest.mark.parametrize(("seed", "reason"), [(13, "code 1: failed to load model"), (14, "does not fit")])
def test_what_goes_wrong_is_said(folder: Path, seed: int, reason: str) -> None:
    with pytest.raises(ArmError, match=reason):
        asked("suffix", seed)
