"""The other side of a peer: the process, and the programs that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.arm import MAIN, PeerArm
from hierchat.config import GenerationSettings
from tests.testing.tiny_chat import CONTEXT, hosted, model


def settings() -> GenerationSettings:
    return GenerationSettings(max_new_tokens=9)


def test_transformers_writes_what_our_plain_decoding_writes(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    engine = hosted().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32"}}'
    peer = PeerArm("transformers", [sys.executable, "-P", MAIN, "transformers", tmp_path, options], engine, 1)
    assert set(peer.versions) == {"transformers", "torch"}
    prompt = list(range(3, 40))
    for _ in range(3):  # each the conversation before and a word more: slots are reused
        ours = [token for step in engine.generate(prompt, settings()) for token in step.tokens]
        answer = peer.answer(prompt, settings())
        assert answer.reply == ours
        assert answer.seconds > 0
        assert answer.first_seconds > 0
        prompt = [*prompt, *ours, 11]
    peer.close()


def test_transformers_in_bfloat16(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "bfloat16"}}'
    peer = PeerArm(
        "bf16", [sys.executable, "-P", MAIN, "transformers", tmp_path, options], hosted().engine, 1
    )
    answer = peer.answer(list(range(3, 40)), settings())
    assert 0 < len(answer.reply) <= settings().max_new_tokens
    peer.close()


def test_lookup_of_transformers_writes_the_same(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    engine = hosted().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32", "lookup": 4}}'
    peer = PeerArm("pld", [sys.executable, "-P", MAIN, "transformers", tmp_path, options], engine, 1)
    prompt = [*range(3, 20)] * 2
    for _ in range(3):
        ours = [token for step in engine.generate(prompt, settings()) for token in step.tokens]
        answer = peer.answer(prompt, settings())
        assert answer.reply == ours
        assert answer.peak_mb
        assert answer.peak_mb > 10
        assert answer.forwards
        assert answer.forwards <= len(answer.reply)
        prompt = [*prompt, *ours, 11]
    peer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system counts otherwise")
def test_a_peers_memory_is_its_own() -> None:
    """A child's ru_maxrss begins with its parent's."""
    held = np.ones(300_000_000 // 8)  # 300 MB here
    code = f"import sys; sys.path.insert(0, {str(MAIN.parent)!r}); import memory; print(memory.peak_mb())"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert held.sum() > 0
    assert 5 < float(said.stdout) < 100
