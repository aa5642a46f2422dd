"""What a start leaves for the first reply: nothing to compile, and no library that only other backends need."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from numba.core.event import install_recorder
from hierchat.engine.engine import GenerationRequest
from hierchat.runtime.drafters import Memory, default_drafter
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.prompt import PromptMessage
from hierchat.config import GenerationSettings, cache_dir
from hierchat.models.catalogue import read_catalogue

served = load_served_model(read_catalogue().entry(None), LoadOptions(stored=True))
assert (cache_dir() / "kernels").is_dir()
memory = Memory()
with install_recorder("numba:compile") as compiling:
    for temperature in (0.0, 0.7):
        asked = [PromptMessage("user", "Write a poem about ferries.")]
        prompt = served.prompts.build(asked, 64, served.engine.end_ids).ids
        settings = GenerationSettings(max_new_tokens=40, temperature=temperature)
        drafter = default_drafter(served, memory)
        steps = served.engine.generate(GenerationRequest(prompt, settings, drafter))
        reply = [token for step in steps for token in step.tokens]
        assert reply
        memory.history[0].add(reply)
print([str(event.data["dispatcher"]) for _, event in compiling.buffer], "torch" in sys.modules)
"""


@pytest.mark.slow
def test_nothing_is_left_to_compile_and_torch_is_not_there() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[] False"
