"""Peers: one JSON line asked, one answered, by a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hierchat.bench import environment
from hierchat.bench.errors import ArmError
from hierchat.bench.peers import PEER, PeerArm, open_peer
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource

from ..chat.tiny import CONTEXT, END, hosted, model
from .fakes import FAKE_PEER


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
    monkeypatch.setattr("hierchat.bench.peers.CLOSE_SECONDS", 0.05)
    script = 'import json, time; print(json.dumps({"versions": {}}), flush=True); time.sleep(600)'
    peer = PeerArm("fake", [sys.executable, "-c", script], hosted().engine, 1)
    peer.close()
    assert peer._process.returncode


def test_transformers_writes_what_our_plain_decoding_writes(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    engine = hosted().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32"}}'
    peer = PeerArm("transformers", [sys.executable, "-P", PEER, "transformers", tmp_path, options], engine, 1)
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


def test_lookup_of_transformers_writes_the_same(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    engine = hosted().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32", "lookup": 4}}'
    peer = PeerArm("pld", [sys.executable, "-P", PEER, "transformers", tmp_path, options], engine, 1)
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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("transformers-assisted", "--draft"),
        ("llama.cpp-lookup", "GGUF"),
        ("dejavuu", r"Python 3\.13 or newer"),
    ],
)
def test_peers_that_cannot_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    entry = ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tmp_path)))
    with pytest.raises(ArmError, match=reason):
        open_peer(name, entry, None, hosted().engine, 1, print)


def test_an_environment_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(environment.sys, "executable", "/nowhere/python")
    said: list[str] = []
    with pytest.raises(ArmError, match="could not be built"):
        environment.python_with(environment.LLAMA_CPP, said.append)
    assert "minutes" in said[0]


def test_a_newer_python_is_found_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = (sys.version_info[0], sys.version_info[1] + 1)
    name = f"{ahead[0]}.{ahead[1]}"

    def put(path: Path, code: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nexit {code}\n")
        path.chmod(0o755)
        return path

    put(tmp_path / "shims" / f"python{name}", 1)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(ArmError, match=rf"Python {name} or newer"):
        environment.find_python(ahead)
    held = put(tmp_path / "pyenv/versions" / f"{name}.4" / "bin/python", 0)
    assert environment.find_python(ahead) == held
    assert environment.find_python((3, 11)) == Path(sys.executable)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system counts otherwise")
def test_a_peers_memory_is_its_own() -> None:
    """A child's ru_maxrss begins with its parent's."""
    held = np.ones(300_000_000 // 8)  # 300 MB here
    code = f"import sys; sys.path.insert(0, {str(PEER.parent)!r}); import peer; print(peer.peak_mb())"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert held.sum() > 0
    assert 5 < float(said.stdout) < 100
