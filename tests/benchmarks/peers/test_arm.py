"""Peers: one JSON line asked, one answered, by a process of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.arm import PeerArm
from benchmarks.peers.environment import ArmError
from hierchat.config import GenerationSettings
from tests.testing.fake_arms import FAKE_PEER
from tests.testing.tiny_chat import END, hosted


@pytest.fixture
def peer(tmp_path: Path) -> PeerArm:
    script = tmp_path / "fake.py"
    script.write_text(FAKE_PEER)
    return PeerArm("fake", [sys.executable, script], hosted().engine, threads=1)


def settings(seed: int = 0) -> GenerationSettings:
    return GenerationSettings(max_new_tokens=9, seed=seed)


def test_asked_and_answered(peer: PeerArm) -> None:
    assert peer.versions == {"fake": "1"}
    answer = peer.answer([7, 8, 9], settings())
    assert (answer.reply, answer.seconds, answer.first_seconds) == ([7, 8, END], 0.5, 0.25)
    assert (answer.forwards, answer.draft_ms, answer.sources) == (None, None, {})
    peer.close()
    assert peer._process.returncode == 0


def test_a_peer_says_what_went_wrong_and_lives(peer: PeerArm) -> None:
    with pytest.raises(ArmError, match="ValueError: too long"):
        peer.answer([7], settings(14))
    assert peer.answer([7], settings()).reply
    peer.close()


def test_a_peer_that_dies_leaves_its_last_words(peer: PeerArm) -> None:
    with pytest.raises(ArmError, match="ended with code 3: unlucky"):
        peer.answer([7], settings(13))


def test_a_peer_that_does_not_start() -> None:
    with pytest.raises(ArmError, match="ended with code 1: no such thing"):
        PeerArm("fake", [sys.executable, "-c", "raise SystemExit('no such thing')"], hosted().engine, 1)


def test_a_peer_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.arm.CLOSE_SECONDS", 0.05)
    script = 'import json, time; print(json.dumps({"versions": {}}), flush=True); time.sleep(600)'
    peer = PeerArm("fake", [sys.executable, "-c", script], hosted().engine, 1)
    peer.close()
    assert peer._process.returncode
