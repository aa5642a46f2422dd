"""Other programs as arms: a process that is asked by JSON lines, its environment, and what it runs."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers.arm import MAIN, PeerArm
from benchmarks.peers.environment import ArmError
from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from tests.testing.tiny_chat import CONTEXT, END, model, served

FAKE_PEER = """
import json, sys
print(json.dumps({"versions": {"fake": "1"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["seed"] == 13:
        print("unlucky", file=sys.stderr)
        sys.exit(3)
    said = {"tokens": asked["prompt"][:2] + asked["end_ids"], "seconds": 0.5, "first_seconds": 0.25}
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path) -> PeerArm:
    script = tmp_path / "fake.py"
    script.write_text(FAKE_PEER)
    return PeerArm("fake", [sys.executable, script], served().engine, threads=1)


def settings(seed: int = 0) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=9, seed=seed)


def test_asked_and_answered(peer: PeerArm) -> None:
    assert peer.versions == {"fake": "1"}
    answer = peer.answer([7, 8, 9], settings())
    assert (answer.reply, answer.seconds, answer.first_seconds) == ([7, 8, END], 0.5, 0.25)
    assert (answer.forwards, answer.draft_ms, answer.sources) == (None, None, {})
    peer.close()
    assert peer._process.returncode == 0


def test_a_peer_that_dies_leaves_its_last_words(peer: PeerArm) -> None:
    with pytest.raises(ArmError, match="ended with code 3: unlucky"):
        peer.answer([7], settings(13))


@pytest.mark.large  # its process imports what takes many seconds
def test_transformers_writes_what_our_plain_decoding_writes(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    engine = served().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32", "lookup": 4}}'
    peer = PeerArm("transformers", [sys.executable, "-P", MAIN, "transformers", tmp_path, options], engine, 1)
    assert set(peer.versions) == {"transformers", "torch"}
    prompt = [*range(3, 20)] * 2
    for _ in range(3):  # each the conversation before and a word more: slots are reused
        ours = [
            token for step in engine.generate(GenerationRequest(prompt, settings())) for token in step.tokens
        ]
        answer = peer.answer(prompt, settings())
        assert answer.reply == ours
        assert min(answer.seconds, answer.first_seconds) > 0
        assert answer.peak_mb
        assert answer.forwards
        assert answer.forwards <= len(answer.reply)
        prompt = [*prompt, *ours, 11]
    peer.close()
