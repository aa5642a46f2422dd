"""Store llama.cpp's logits for the tiny hybrids' files, which test_hybrids.py compares ours with:

    python -m tests.gguf_files.llama_logits PYTHON

PYTHON is one in whose environment llama-cpp-python is installed."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from tests.gguf_files.models import VOCABULARY, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.tiny import random_tokens
from tests.testing.tiny_files import tiny_tokenizer

STORED = Path(__file__).with_suffix(".npz")
"""Float32 [positions, vocabulary] by the name of the family."""
TOKENS = random_tokens(24, seed=1, vocabulary=VOCABULARY)
POSITIONS = slice(3, None, 4)
HYBRIDS = (
    "qwen35", "qwen35, heads alike", "qwen35moe", "qwen3next", "granitehybrid", "granitehybrid, experts", "lfm2",
    "lfm2moe", "nemotron_h", "nemotron_h_moe",
)  # fmt: skip
_PROGRAM = """
import json, sys
import numpy as np
from llama_cpp import Llama
model, out, tokens = *sys.argv[1:3], json.loads(sys.argv[3])
llama = Llama(model, n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
llama.eval(tokens)
np.save(out, llama.scores[: len(tokens)])
"""


def write_file(name: str, folder: Path) -> Path:
    module, changed = tiny_module(name), {}
    if name.startswith("qwen35"):
        changed["rope.dimension_sections"] = [1, 1, 0, 0]  # of a head this small
    return write_family(name, module, folder / "tiny.gguf", tiny_tokenizer(("ab",)), **changed)


def logits_of(python: str, file: Path) -> NDArray[np.float32]:
    """[positions, vocabulary]. Raises CalledProcessError if llama.cpp does not read the file."""
    out = file.with_suffix(".npy")
    subprocess.run([python, "-c", _PROGRAM, file, out, json.dumps(TOKENS)], check=True)
    return np.asarray(np.load(out), np.float32)[POSITIONS]


def main(python: str) -> None:
    found = {}
    with TemporaryDirectory() as folder:
        for name in HYBRIDS:
            found[name] = logits_of(python, write_file(name, Path(folder)))
            print(name, flush=True)
            np.savez_compressed(STORED, **found)
    np.savez_compressed(STORED, **found)


if __name__ == "__main__":
    main(sys.argv[1])
