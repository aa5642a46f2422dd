"""benchmarks forward: what it asks of each program, what limits a forward, and what is computed from that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import forward
from benchmarks.__main__ import main
from benchmarks.forward import REPEATS, WIDTHS


class Fixed:
    """A program that takes `ms` a position."""

    def __init__(self, name: str, ms: float, log: list[tuple[str, int]]) -> None:
        self.name, self.ms, self.log = name, ms, log

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        assert [len(one) for one in segments] == list(WIDTHS)
        self.log.append((self.name, len(prompt)))
        return [self.ms * len(one) for one in segments]

    def reading(self, prompt: Sequence[int]) -> float:
        return self.ms * len(prompt)


def test_programs_take_turns_and_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "PAUSE", 0)
    log: list[tuple[str, int]] = []
    programs = {"one": Fixed("one", 2.0, log), "other": Fixed("other", 3.0, log)}
    found = forward.side_by_side(programs, [5, 9], 100, 50)
    assert log == [("one", 5), ("other", 5)] * REPEATS + [("one", 9), ("other", 9)] * REPEATS
    assert found["one"]["contexts"]["9"] == {str(width): 2.0 * width for width in WIDTHS}
    assert (found["other"]["prompt_ms"], found["other"]["prompt_tokens_per_second"]) == (300.0, 333.3)


@pytest.mark.usefixtures("tiny_in_the_catalogue")
class TestCommand:
    """With a tiny model, and a peer that tells what it was asked."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forward, "REPEATS", 2)
        monkeypatch.setattr(forward, "READINGS", 1)

    def test_ours_and_a_peer(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        peer = FakePeer()
        monkeypatch.setattr(forward, "open_peer", lambda name, *more: peer)
        out = tmp_path / "out.json"
        asked = ["--model", "tiny", "--contexts", "8", "--peers", "llama.cpp"]
        assert main(["forward", *asked, "--json", str(out)]) == 0
        found = json.loads(out.read_text())
        assert found["peers"]["llama.cpp"]["versions"] == {"fake": "1"}
        assert found["peers"]["llama.cpp"]["contexts"]["8"]["16"] == 32.0
        assert set(found["contexts"]["8"]) == {str(width) for width in WIDTHS}
        assert peer.closed
        said = capsys.readouterr().out
        assert "llama.cpp" in said
        assert "reading a prompt" in said


class FakePeer:
    """Takes 2 ms a position."""

    versions = {"fake": "1"}  # noqa: RUF012 (never changed)
    closed = False

    def ask(self, **request: Any) -> dict[str, Any]:
        if request["do"] == "reading":
            return {"ms": 2.0 * len(request["prompt"])}
        return {"ms": [2.0 * len(one) for one in request["segments"]]}

    def close(self) -> None:
        self.closed = True
