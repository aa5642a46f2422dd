"""What comes into vLLM's process with the drafter."""

from __future__ import annotations

import subprocess
import sys

NAMED = """
import sys
import types
before = set(sys.modules)
import hierchat.drafting.vllm.custom_proposer
import hierchat.drafting.vllm.worker
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


def test_the_proposer_brings_drafting_and_what_that_needs() -> None:
    """In a process of its own: no torch, no transformers, no gradio, none of our other packages."""
    done = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split())
    assert {"numba", "numpy", "sqlite3"} <= brought
    not_there = {
        "torch",
        "transformers",
        "gradio",
        "sqlite_utils",
        "psutil",
        "safetensors",
        "huggingface_hub",
        "requests",
    }
    assert not brought & not_there
