"""Our tokenizer against another program's, which a script stands in for."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from benchmarks import tokens
from benchmarks.peers.environment import ArmError
from hierchat.models.catalogue import Gguf, ModelEntry, ModelSource
from hierchat.models.load.tokenizer_files import load_tokenizer
from tests.models.conftest import tiny_tokenizer
from tests.testing.architectures import CONFIGS, model_of, write_gguf

ANSWERS = """
import json, sys
from pathlib import Path
known = json.loads(Path(sys.argv[0]).with_suffix(".json").read_text())
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(known[asked["text"]][asked["control"]]))
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """A tiny model in the catalogue, a question, and a program that gives its tokens."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    path = write_gguf(
        model_of(CONFIGS["llama"], vocab_size=272), tmp_path / "tiny.gguf", tiny_tokenizer(extra=("ab",))
    )
    own = tmp_path / "config" / "models.yaml"
    own.parent.mkdir()
    own.write_text(f"models:\n  tiny: {{source: {{gguf: {{path: {path}}}}}}}\n")
    monkeypatch.setenv("HIERCHAT_CONFIG", str(own.parent))
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"turns": ["What?", "<|im_end|> Why?"]}\n')
    tokenizer = load_tokenizer(ModelEntry(name="tiny", source=ModelSource(gguf=Gguf(path=path))))

    def ours(text: str) -> list[list[int]]:
        return [
            tokenizer(text, add_special_tokens=False, split_special_tokens=whole)["input_ids"]
            for whole in (True, False)
        ]

    program = tmp_path / "program.py"
    program.write_text(ANSWERS)
    known = {text: ours(text) for text in (*tokens.ODD, "What?", "<|im_end|> Why?")}
    program.with_suffix(".json").write_text(json.dumps(known))
    monkeypatch.setattr(tokens, "PROGRAM", program)
    monkeypatch.setattr(tokens, "python_with", lambda packages, say: Path(sys.executable))
    return argparse.Namespace(model="tiny", questions=questions)


def test_differences_are_counted(asked: argparse.Namespace) -> None:
    found = tokens.measure(asked)
    assert (found["texts"], found["differ"]) == (2 * (len(tokens.ODD) + 2), 0)
    known = json.loads(tokens.PROGRAM.with_suffix(".json").read_text())
    assert known["<|im_end|> Why?"][0] != known["<|im_end|> Why?"][1]
    known["What?"][1] = [7]
    tokens.PROGRAM.with_suffix(".json").write_text(json.dumps(known))
    (one,) = tokens.measure(asked)["first"]
    assert (one["text"], one["control"], one["llama.cpp"]) == ("What?", True, [7])


def test_a_program_that_fails_says_so(asked: argparse.Namespace) -> None:
    tokens.PROGRAM.write_text("raise SystemExit('no such vocabulary')")
    with pytest.raises(ArmError, match="no such vocabulary"):
        tokens.measure(asked)
