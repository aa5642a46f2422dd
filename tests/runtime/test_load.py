"""Loading where a GPU fails: the processor computes the model, and the user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hierchat.config import GenerationSettings
from hierchat.engine import backends
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from hierchat.models.errors import DeviceError
from hierchat.runtime.load import load_hosted

from ..chat.tiny import model, tokenizer


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tmp_path / "model")))


def test_where_a_gpu_fails_the_processor_answers(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    land = backends.land
    asked: list[Any] = []

    def failing(loaded: Any, *given: Any) -> Any:
        asked.append(loaded.device)
        if len(asked) == 1:
            raise DeviceError("NVIDIA Z9 does not compute tiny in any way (memory ran out).")
        return land(loaded, *given)

    monkeypatch.setattr(backends, "land", failing)
    reports: list[str] = []
    hosted = load_hosted(entry, report=lambda progress: reports.append(progress.message), device="cpu")
    said = "NVIDIA Z9 does not compute tiny in any way (memory ran out). The processor computes it instead."
    assert hosted.note == said
    assert said in reports
    assert asked == ["cpu", "cpu"]
    steps = hosted.engine.generate([5, 6, 7], GenerationSettings(max_new_tokens=4))
    assert [step.finish for step in steps][-1] in ("length", "end")


def test_a_single_rung_that_fails_is_an_error(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any) -> Any:
        raise DeviceError("NVIDIA Z9 stopped answering.")

    monkeypatch.setattr(backends, "land", failing)
    with pytest.raises(DeviceError, match="stopped answering"):
        load_hosted(entry, device="cpu", rung="graphs")
