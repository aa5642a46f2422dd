"""`python -m benchmarks gpu`, with the processor in a GPU's place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu import try_one
from hierchat.config import cache_dir
from hierchat.engine.cpu.trial import trial_runner  # compiled for the cache of all tests
from hierchat.engine.fallback import AttemptLog, AttemptRecord, attempt_records
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.catalogue import read_catalogue
from hierchat.models.device_memory import best_device
from tests.testing.tiny_chat import catalogue

assert trial_runner
KERNELS = cache_dir() / "kernels"
"""Those that are compiled already."""


@pytest.fixture(autouse=True)
def two_models(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "read_catalogue", lambda: catalogue("tiny", "other"))
    (places / "CACHE").mkdir(exist_ok=True)
    (places / "CACHE" / "kernels").symlink_to(KERNELS, target_is_directory=True)


@pytest.fixture
def saved(tiny_in_the_catalogue: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model lies where the catalogue of the configuration folder names it."""
    monkeypatch.setattr(gpu, "read_catalogue", read_catalogue)


FOUND: dict[str, Any] = {
    "implementation": "slots",
    "backend": "float32",
    "exact": True,
    "quantum": 4,
    "way": "",
    "note": "",
    "verify": {"tokens": 432, "mismatches": 0},
    "plain": 50.0,
    "drafted": 75.04,
    "per_forward": 1.5,
    "forward_ms": {"1": 20.0, "2": 21.0},
}
UNDRAFTED = {
    "implementation": "plain",
    "backend": "float32",
    "exact": True,
    "quantum": 1,
    "way": "pieces",
    "note": "",
    "plain": 10.0,
    "forward_ms": {"1": 100.0},
}


@pytest.mark.usefixtures("saved")
def test_figures_of_a_way_with_drafts_and_of_one_without() -> None:
    drafted, plain = (try_one("tiny", way, "cpu") for way in ("slots", "plain"))
    assert (drafted.keys(), plain.keys()) == (FOUND.keys(), UNDRAFTED.keys())
    assert (drafted["implementation"], drafted["exact"]) == ("slots", True)
    assert drafted["verify"]["tokens"] > 0
    assert drafted["verify"]["mismatches"] == 0
    assert list(drafted["forward_ms"]) == ["1", "2", "4", "8", "16", "32"]
    assert (plain["implementation"], plain["way"]) == ("plain", "pieces")
    assert attempt_records() == []


@pytest.mark.usefixtures("saved")
def test_a_way_that_fails_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any, **named: Any) -> None:
        raise RuntimeError("an illegal instruction was encountered")

    monkeypatch.setattr(TorchRunner, "run", wrong)
    found = try_one("tiny", "slots", "cpu")
    assert found == {
        "failed": "tiny cannot be computed here: RuntimeError: an illegal instruction was encountered."
    }
    found = try_one("tiny", "any", "cpu")  # as the program loads it
    assert found["implementation"] == "plain"
    assert found["note"].startswith(
        "It is computed by transformers alone, without drafts: what is faster failed"
    )


def test_without_a_gpu_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DEVICE", "cpu")
    assert main(["gpu"]) == 1
    assert capsys.readouterr().out == gpu.NO_GPU + "\n"


def tried(found: dict[str, dict[str, Any]], asked: list[tuple[str, ...]]) -> gpu.Try:
    def tries(*which: str) -> dict[str, Any]:
        asked.append(which)
        return found[which[1]]

    return tries


def test_the_block_has_every_way_and_the_chosen_model(capsys: pytest.CaptureFixture[str]) -> None:
    notes = AttemptLog(AttemptRecord(model="tiny", device="a GPU", made_with="these versions"), "key")
    notes.tried("graphs", lost="no answer")
    asked: list[tuple[str, ...]] = []
    found = {"slots": FOUND, "plain": UNDRAFTED, "any": FOUND}
    assert gpu.try_gpu("other", "cpu", tried(found, asked)) == 0
    assert asked == [("tiny", "slots", "cpu"), ("tiny", "plain", "cpu"), ("other", "any", "cpu")]
    said = capsys.readouterr().out
    row = (
        "| tiny, float32 | PyTorch's own operations | exact, multiples of 4 | 432 tokens, 0 replies differ | 50.0 | "
        "75.0 | 1.50 | 20.00, 21.00 |"
    )
    assert row in said.splitlines()
    plain = (
        "| tiny, float32 | transformers alone, without drafts | pieces | no drafts | 10.0 |  |  | 100.00 |"
    )
    assert plain in said.splitlines()
    assert f"torch {torch.__version__}" in said
    assert attempt_records() == []  # all is well: what an earlier start gave up is tried again


@pytest.mark.parametrize(
    "worse",
    [
        {"failed": "the program ended with -11: it said nothing"},
        {**FOUND, "verify": {"tokens": 9, "mismatches": 1}},
    ],
)
def test_a_failure_or_another_word_is_an_exit_status(
    worse: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = AttemptLog(AttemptRecord(model="tiny", device="a GPU", made_with="these versions"), "key")
    notes.tried("graphs", lost="no answer")
    assert gpu.try_gpu(None, "cpu", tried({"slots": worse, "plain": UNDRAFTED}, [])) == 1
    said = capsys.readouterr().out
    assert "ended with -11" in said or "1 replies differ" in said
    assert len(attempt_records()) == 1


@pytest.mark.large  # a process that imports torch
def test_each_way_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nobody" in gpu.in_process("nobody", "slots", "cpu")["failed"]
    monkeypatch.setattr(gpu, "EACH_S", 0.001)
    assert gpu.in_process("tiny", "slots", "cpu")["failed"] == "it did not end within 0.001 seconds"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert gpu.in_process("tiny", "slots", "cpu")["failed"] == "the program ended with 1: it said nothing"


def test_doctor_says_what_computed_a_model_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    from hierchat.checks.doctor import computed

    assert computed()[0].text == "no model was computed by transformers yet"
    notes = AttemptLog(
        AttemptRecord(model="tiny, nf4", device="NVIDIA Z9", made_with="these versions"), "key"
    )
    notes.end("rows", {"graphs": "RuntimeError: no"})
    (line,) = computed()
    assert (
        line.text
        == "tiny, nf4, on NVIDIA Z9: our GPU kernels without graphs; CUDA graphs failed: RuntimeError: no"
    )
    assert "benchmarks gpu" in line.advice


@pytest.mark.parametrize("asked", ["mps", "cuda", "tpu"])
def test_a_device_that_is_not_there(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    monkeypatch.setenv("HIERCHAT_DEVICE", asked)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(Exception, match=f"HIERCHAT_DEVICE is set to {asked}, which is not there"):
        best_device()
