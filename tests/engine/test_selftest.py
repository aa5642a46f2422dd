"""The self-test finds every kind of dependence on the block, and its result is kept."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hierchat.engine import selftest
from hierchat.engine.runner import Segment
from hierchat.engine.selftest import SelfTestResult, cache_key, invariant, remembered
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.engine.verification import Rows
from tests.testing.tiny import tiny_model


class ToyRunner:
    """Computes the segments of two texts in one forward."""

    shares_forward, most_sequences = True, 2

    def __init__(self, fault: str | None) -> None:
        self.fault = fault

    def open(self) -> "Toy":
        return Toy()

    def forward(self, segments: Sequence[Segment]) -> list[Rows]:
        rows = [one.sequence.forward(one.tokens, one.parents) for one in segments]
        return [one + 1 for one in rows] if self.fault == "beside a prompt" else rows


class Toy:
    """Logits are a function of the text before a node, and of one thing more that they should not depend on."""

    vocabulary, context_length, exact = 50, 512, True

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault
        self.runner = ToyRunner(fault)
        self.threads = 2
        self.forwards = 0
        self.marks: list[float] = []
        self.tokens: list[int] = []

    def rollback(self, length: int) -> None:
        del self.tokens[length:], self.marks[length:]

    def read(self, tokens: Sequence[int], hidden: bool = False) -> None:
        self.tokens += tokens
        self.marks += [float(len(tokens))] * len(tokens) if self.fault == "committed in pieces" else []

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        self.forwards += 1
        self.block, paths = list(tokens), []
        rows = np.empty((len(tokens), self.vocabulary), dtype=np.float32)
        for node, parent in enumerate(parents):
            paths.append((*(paths[parent] if parent >= 0 else ()), tokens[node]))
            text = [*self.tokens, *paths[node]]
            rows[node] = np.random.default_rng(text).random(self.vocabulary) + sum(self.marks)
        rows += {
            "width": len(tokens) == 1,
            "row": np.arange(len(tokens))[:, None] > 9,
            "depth of the block": max(map(len, paths)) == 5,
            "branches": len(set(parents)) == len(parents) > 7,
            "long blocks": len(tokens) > 16,
            "threads": self.threads == 2,
        }.get(self.fault or "", 0)
        return rows

    def commit(self, nodes: Sequence[int]) -> None:
        self.tokens += [self.block[node] for node in nodes]
        if self.fault == "moved slots" and list(nodes) != list(range(len(nodes))):
            self.marks.append(1.0)

    def close(self) -> None:
        self.tokens.clear()

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        self.threads = 1
        yield
        self.threads = 2


@pytest.mark.parametrize(
    "fault",
    [
        *(None, "width", "row", "depth of the block", "branches"),
        *("committed in pieces", "moved slots", "long blocks", "threads", "beside a prompt"),
    ],
)
def test_a_sound_target_passes_and_every_fault_is_found(fault: str | None) -> None:
    toy = Toy(fault)
    assert invariant(toy, one_thread=toy.one_thread) is (fault is None)
    assert toy.tokens == []


def prove(toy: Toy, key: str | None = None) -> bool:
    return remembered(key, lambda: SelfTestResult(exact=invariant(toy))).exact


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    return tmp_path / "selftest"


@pytest.mark.parametrize("fault", [None, "width"])
def test_a_result_is_kept(kept: Path, fault: str | None) -> None:
    assert prove(Toy(fault), "key") is (fault is None)
    again = Toy()
    assert prove(again, "key") is (fault is None)
    assert again.forwards == 0
    assert os.listdir(kept) == ["key.json"]
    prove(again, "another")
    assert again.forwards > 0
    prove(again)  # without a key nothing is kept
    assert len(os.listdir(kept)) == 2


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff\x00", b"[]", b'{"exact": "yes"}', b'{"exact": true, "quantum": 0}']
)
def test_a_damaged_result_is_found_anew(kept: Path, damaged: bytes) -> None:
    kept.mkdir()
    file = kept / "key.json"
    file.write_bytes(damaged)
    proof = SelfTestResult(exact=True, quantum=6, widest=32)
    assert remembered("key", lambda: proof) == proof
    assert remembered("key", lambda: pytest.fail("it was written anew")) == proof


def test_where_nothing_can_be_written_it_is_tested_each_time(kept: Path) -> None:
    kept.write_text("a file in the folder's place")
    for _ in range(2):
        toy = Toy()
        assert prove(toy, "key")
        assert toy.forwards > 0


def test_the_key_names_what_bits_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache_key("model", "float32")
    assert key == cache_key("model", "float32")
    others = [
        cache_key("other", "float32"),
        cache_key("model", "bfloat16"),
        cache_key("model", "float32", "a GPU"),
    ]
    for name, value in {"_version": "0", "_sources": "changed", "_processor": "new"}.items():
        with monkeypatch.context() as patch:
            patch.setattr(selftest, name, lambda *given, value=value: value)
            others.append(cache_key("model", "float32"))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert len({key, *others, cache_key("model", "float32")}) == 8


def test_the_torch_target_keeps_its_quantum(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TorchRunner(tiny_model(), packed=False, key="tiny").open()
    monkeypatch.setattr(TorchRunner, "_find_quantum", lambda _: pytest.fail("it was kept"))
    again = TorchRunner(tiny_model(), packed=False, key="tiny").open()
    assert (again.runner.quantum, again.runner.exact, again.tokens) == (
        first.runner.quantum,
        first.runner.exact,
        [],
    )
