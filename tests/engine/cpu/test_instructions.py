"""Every instruction set that this processor has computes the same model, exactly over widths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hierchat.jit import INSTRUCTION_SETS, supported

SCRIPT = """
import sys, numpy as np
from hierchat.jit import INSTRUCTIONS
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import block_model, random_tokens, tiny_model
target = CpuRunner(block_model(tiny_model("qwen3"), lambda w: pack(w, 4)), context_length=512, threads=2).open()
assert target.exact, "rows mix"
np.save(sys.argv[1], target.forward(random_tokens(150)[:100], range(-1, 99)))
print(INSTRUCTIONS)
"""


def _logits(name: str, folder: Path) -> np.ndarray:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "HIERCHAT_INSTRUCTIONS": name, "PYTHONPATH": str(root)}
    file = folder / f"{name}.npy"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, file], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == name
    return np.load(file)


BEST, *OTHERS = supported()


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _logits(BEST, tmp_path_factory.mktemp("best"))


@pytest.mark.large
@pytest.mark.parametrize("name", OTHERS)
def test_every_set_agrees_with_the_best(name: str, best: np.ndarray, tmp_path: Path) -> None:
    """Compiling all that a set needs takes half a minute: its products by themselves are compared in test_products."""
    found = _logits(name, tmp_path)
    np.testing.assert_allclose(found, best, atol=2e-4 * np.abs(best).max())


def test_one_set_is_every_processors() -> None:
    assert supported()[-1] == "generic"


def test_an_unknown_set_is_refused() -> None:
    lacking = [name for name in INSTRUCTION_SETS if name not in supported()] or ["sse9"]
    done = subprocess.run(
        [sys.executable, "-c", "import hierchat.jit"],
        env={**os.environ, "HIERCHAT_INSTRUCTIONS": lacking[0]},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "this processor can do" in done.stderr
