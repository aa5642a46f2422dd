"""The catalogue against a hub: what is otherwise there is said, and no weights are fetched."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hierchat.cli.main import main
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.add import differences, on_hub
from tests.testing.fake_hub import REPO, FakeHub


@pytest.fixture
def hub(tiny_folder: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {file.name: file.read_bytes() for file in tiny_folder.iterdir()}
    with FakeHub({**files, "tiny.Q8_0.gguf": tiny_gguf.read_bytes()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def entry(source: dict[str, Any] | None = None, **fields: Any) -> ModelEntry:
    parts = {"name": "tiny", "source": source or {"hub": {"repo": REPO}}, "kind": "llama"}
    return ModelEntry.model_validate({**parts, **fields})


SLOT = 2 * 2 * 2 * 16
PARAMETERS = 272 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def size(**changed: int) -> dict[str, int]:
    return {"parameters": PARAMETERS, "slot": SLOT} | changed


def test_what_agrees_says_nothing(hub: FakeHub) -> None:
    assert list(differences(entry(size=size()))) == []
    gguf = {"gguf": {"repo": REPO, "file": "tiny.Q8_0.gguf"}}
    assert list(differences(entry(cpu=gguf, size=size()))) == []
    whole = len(hub.files["model.safetensors"])
    ranges = [asked for _, path, asked in hub.asked if path.endswith("model.safetensors")]
    assert all(asked and int(asked.split("-")[1]) < whole - 1 for asked in ranges)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "qwen3"}, "of the kind llama; the catalogue says qwen3"),
        ({"size": size(parameters=7)}, f"has {PARAMETERS:,} parameters; the catalogue says 7"),
        ({"size": size(slot=1)}, f"keeps {SLOT:,} numbers a position; the catalogue says 1"),
        ({"source": {"hub": {"repo": "org/gone"}}}, "no public repository org/gone"),
        ({"source": {"gguf": {"repo": REPO, "file": "gone.gguf"}}}, "GGUF"),
    ],
)
def test_what_differs_is_said(hub: FakeHub, fields: dict[str, Any], said: str) -> None:
    hub.files.setdefault("gone.gguf", b"no model")
    assert any(said in sentence for sentence in differences(entry(**fields)))


def test_of_a_model_that_sees_texts_alone_count(hub: FakeHub) -> None:
    text = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "head_dim": 4}
    windows = ["sliding_attention", "full_attention"]
    config = {"model_type": "gemma4", "text_config": text | {"layer_types": windows, "global_head_dim": 6}}
    names = ("model.language_model.norm.weight", "lm_head.weight", "model.vision_tower.norm.weight")
    told = {name: {"dtype": "BF16", "shape": [7], "data_offsets": [0, 14]} for name in names}
    head = json.dumps(told).encode()
    hub.files |= {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": struct.pack("<Q", len(head)) + head + bytes(42),
    }
    agreed = {"parameters": 14, "slot": 2 * 2 * (4 + 6)}
    assert list(differences(entry(kind="gemma4", size=agreed))) == []
    (said,) = differences(entry(kind="gemma4", size=agreed | {"slot": 3}))
    assert "keeps 40 numbers a position" in said


def test_the_command(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "models.yaml"
    said = f"models:\n  tiny: {{source: {{hub: {{repo: {REPO}}}}}, kind: KIND}}\n"
    file.write_text(said.replace("KIND", "llama"))
    assert main(["models", "check", "tiny"]) == 0
    assert "tiny: as on the hub" in capsys.readouterr().out
    file.write_text(said.replace("KIND", "mistral"))
    assert main(["models", "check", "tiny"]) == 1
    assert "the catalogue says mistral" in capsys.readouterr().out


def test_without_a_hub_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["models", "check"]) == 1
    assert "The hub cannot be reached" in capsys.readouterr().err


def test_which_come_from_the_hub() -> None:
    models = read_catalogue().models
    assert on_hub(models["qwen3-0.6b"])
    assert not on_hub(models["smollm2-135m"])
