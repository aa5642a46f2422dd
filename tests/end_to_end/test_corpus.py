"""A corpus for the default model, from the command line to what its source is given."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hierchat.drafting.suffix_index import BREAK
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.texts.corpora import statistics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TEXTS = [
    f"Step {n}: put {n} eggs into the bowl, and stir.\n\n```python\nprint({n})\n```" for n in range(3000)
]


def test_a_corpus_for_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name))
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "replies.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    # Neither the weights nor torch: a process of its own, which may not import it
    shut_out = (
        "import sys; sys.modules['torch'] = None; from hierchat.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", shut_out, "corpus", "add", str(tmp_path / "replies.jsonl.gz")],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "tokens for smollm2-135m" in done.stdout

    entry = read_catalogue().entry()
    tokenizer = load_tokenizer(entry)
    found = next(one for one in statistics(entry, tokenizer) if one.name == "replies")
    ends = np.flatnonzero(found.tokens == BREAK)
    read = [tokenizer.decode(ids[ids != BREAK]) for ids in np.split(found.tokens, ends)[:-1]]
    assert read == TEXTS
    # The model writes the same tokens: what follows an ending in the corpus is what it would write
    assert found.tokens[: ends[0]].tolist() == tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
