"""Other programs as arms: a process that is asked by JSON lines, its environment, and what it runs."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import environment
from benchmarks.peers.arm import MAIN, PeerArm, Weights, open_peer
from benchmarks.peers.environment import ArmError
from benchmarks.peers.programs.llama_cpp import DraftModel
from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from tests.testing.fake_arms import FAKE_PEER
from tests.testing.tiny_chat import CONTEXT, END, model, served


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
        PeerArm("fake", [sys.executable, "-c", "raise SystemExit('no such thing')"], served().engine, 1)


def test_a_peer_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.arm.CLOSE_SECONDS", 0.05)
    script = 'import json, time; print(json.dumps({"versions": {}}), flush=True); time.sleep(600)'
    peer = PeerArm("fake", [sys.executable, "-c", script], served().engine, 1)
    peer.close()
    assert peer._process.returncode


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


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("transformers-assisted", "--draft"),
        ("llama.cpp-lookup", "GGUF"),
        ("llama.cpp-draft", "--draft"),
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
        open_peer(name, Weights(entry, served()), 1, print)


@pytest.mark.parametrize("lookup", ["", ', "lookup": 4'])
def test_transformers_writes_what_our_plain_decoding_writes(tmp_path: Path, lookup: str) -> None:
    model().save_pretrained(tmp_path)
    engine = served().engine
    options = f'{{"threads": 1, "context": {CONTEXT}, "device": "cpu", "dtype": "float32"{lookup}}}'
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
        assert not lookup or (answer.peak_mb and answer.forwards <= len(answer.reply))
        prompt = [*prompt, *ours, 11]
    peer.close()


WORDS, WINDOW = 50, 32
UNSURE = 20
"""Behind this token the model is not sure that the next one follows."""


class Counting:
    """As a Llama: the next number follows each number. `evaluated`: what each call got, and whether it kept all
    logits."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.input_ids = np.zeros(WINDOW, np.intc)
        self.evaluated: list[tuple[list[int], bool]] = []
        self._logits_all = True
        self._ctx = self

    def n_ctx(self) -> int:
        return WINDOW

    def n_vocab(self) -> int:
        return WORDS

    def eval(self, tokens: list[int]) -> None:
        self.evaluated.append((list(tokens), self._logits_all))
        self.input_ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)

    def get_logits_ith(self, place: int) -> Any:
        assert place == -1
        last = int(self.input_ids[self.n_tokens - 1])
        self.logits = np.zeros(WORDS, np.float32)
        self.logits[(last + 1) % WORDS] = 1.0 if last == UNSURE else 10.0
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    @property
    def read(self) -> list[int]:
        """All that was evaluated since this was asked last."""
        found = [token for tokens, _ in self.evaluated for token in tokens]
        self.evaluated.clear()
        return found


def drafted(model: DraftModel, *tokens: int) -> list[int]:
    return model(np.array(tokens, np.intc)).tolist()


def test_a_draft_follows_the_model_as_far_as_it_may_and_is_sure() -> None:
    model = DraftModel(Counting(), most=4, sure=0.75)
    assert drafted(model, 3, 4, 5) == [6, 7, 8, 9]
    assert drafted(model, 3, 4, 18) == [19, 20]
    assert drafted(model, 3, UNSURE) == []
    assert drafted(DraftModel(Counting(), most=4, sure=0.0), 3, 19) == [20, 21, 22, 23]


def test_what_the_target_accepted_is_not_evaluated_again() -> None:
    llama = Counting()
    model = DraftModel(llama, most=3, sure=0.5)
    assert drafted(model, 1, 2, 3) == [4, 5, 6]
    assert llama.read == [1, 2, 3, 4, 5]
    assert drafted(model, 1, 2, 3, 4, 5, 6, 7) == [8, 9, 10]  # all, and the target's own token
    assert llama.read == [6, 7, 8, 9]
    assert drafted(model, 1, 2, 3, 4, 40) == [41, 42, 43]  # one of three
    assert llama.read == [40, 41, 42]
    assert drafted(model, 30) == [31, 32, 33]  # another text
    assert llama.read == [30, 31, 32]
