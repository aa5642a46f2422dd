"""The catalogue against a hub: what differs is said, and no weights are fetched."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.makers.hub_check import differences
from hierchat.models.catalogue import ModelEntry
from tests.testing.fake_hub import REPO, FakeHub

SLOT = 2 * 2 * 2 * 16


@pytest.fixture
def both(hub: FakeHub, tiny_gguf: Path) -> FakeHub:
    hub.files["tiny.Q8_0.gguf"] = tiny_gguf.read_bytes()
    return hub


def named(source: dict[str, Any] | None = None, **fields: Any) -> ModelEntry:
    parts = {"name": "tiny", "source": source or {"hub": {"repo": REPO}}, "kind": "llama"}
    return ModelEntry.model_validate({**parts, **fields})


PARAMETERS = 272 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def size(**changed: int) -> dict[str, int]:
    return {"parameters": PARAMETERS, "slot": SLOT} | changed


def test_what_agrees_says_nothing(both: FakeHub) -> None:
    assert list(differences(named(size=size()))) == []
    gguf = {"gguf": {"repo": REPO, "file": "tiny.Q8_0.gguf"}}
    assert list(differences(named(cpu=gguf, size=size()))) == []
    whole = len(both.files["model.safetensors"])
    ranges = [asked for _, path, asked in both.asked if path.endswith("model.safetensors")]
    assert all(asked and int(asked.split("-")[1]) < whole - 1 for asked in ranges)


def test_what_differs_is_said(both: FakeHub) -> None:
    both.files["gone.gguf"] = b"no model"
    for fields, said in (
        ({"kind": "qwen3"}, "of the kind llama; the catalogue says qwen3"),
        ({"size": size(parameters=7)}, f"has {PARAMETERS:,} parameters; the catalogue says 7"),
        ({"size": size(slot=1)}, f"keeps {SLOT:,} numbers a position; the catalogue says 1"),
        ({"source": {"hub": {"repo": "org/gone"}}}, "no public repository org/gone"),
        ({"source": {"gguf": {"repo": REPO, "file": "gone.gguf"}}}, "GGUF"),
    ):
        assert any(said in sentence for sentence in differences(named(**fields)))
