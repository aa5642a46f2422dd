"""`python -m benchmarks gpu`, with the processor in a GPU's place."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from benchmarks.gpu import try_one
from hierchat.checks.doctor import computed
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


PLAIN = {"backend": "float32", "exact": True, "quantum": 1, "way": "pieces", "note": "", "plain": 10.0}
FOUND: dict[str, Any] = {
    **PLAIN, "implementation": "slots", "quantum": 4, "way": "", "verify": {"tokens": 432, "mismatches": 0},
    "plain": 50.0, "drafted": 75.04, "per_forward": 1.5, "forward_ms": {"1": 20.0, "2": 21.0},
}  # fmt: skip
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


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_figures_of_a_way_with_drafts_of_one_without_and_of_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "read_catalogue", read_catalogue)  # which names where the tiny model lies
    drafted, plain = (try_one("tiny", way, "cpu") for way in ("slots", "plain"))
    assert (drafted.keys(), plain.keys()) == (FOUND.keys(), UNDRAFTED.keys())
    assert (drafted["implementation"], drafted["exact"]) == ("slots", True)
    assert drafted["verify"]["tokens"] > 0
    assert drafted["verify"]["mismatches"] == 0
    assert list(drafted["forward_ms"]) == ["1", "2", "4", "8", "16", "32"]
    assert (plain["implementation"], plain["way"]) == ("plain", "pieces")
    assert attempt_records() == []
    why = "an illegal instruction was encountered"
    monkeypatch.setattr(TorchRunner, "run", Mock(side_effect=RuntimeError(why)))
    found = try_one("tiny", "slots", "cpu")
    assert found == {"failed": f"tiny cannot be computed here: RuntimeError: {why}."}
    found = try_one("tiny", "any", "cpu")  # as the program loads it
    assert found["implementation"] == "plain"
    assert found["note"].startswith("It is computed by transformers alone, without drafts: what is faster")


def test_without_a_gpu_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DEVICE", "cpu")
    assert main(["gpu"]) == 1
    assert capsys.readouterr().out == gpu.NO_GPU + "\n"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for asked in ("mps", "tpu", *["cuda"] * (not torch.cuda.is_available())):
        monkeypatch.setenv("HIERCHAT_DEVICE", asked)
        with pytest.raises(Exception, match=f"HIERCHAT_DEVICE is set to {asked}, which is not there"):
            best_device()


def tried(
    found: dict[str, dict[str, Any]], model: str | None = None
) -> tuple[int, str, list[tuple[str, ...]]]:
    """The exit code, what was printed, and which ways were tried. A way was given up at an earlier start."""
    AttemptLog(AttemptRecord(model="tiny", device="a GPU", made_with="any"), "key").tried("graphs", lost="no")
    asked: list[tuple[str, ...]] = []

    def tries(*which: str) -> dict[str, Any]:
        asked.append(which)
        return found[which[1]]

    with redirect_stdout(StringIO()) as said:
        code = gpu.try_gpu(model, "cpu", tries)
    return code, said.getvalue(), asked


def test_the_block_has_every_way_and_the_chosen_model() -> None:
    code, said, asked = tried({"slots": FOUND, "plain": UNDRAFTED, "any": FOUND}, "other")
    assert code == 0
    assert asked == [("tiny", "slots", "cpu"), ("tiny", "plain", "cpu"), ("other", "any", "cpu")]
    for row in (
        "| tiny, float32 | PyTorch's own operations | exact, multiples of 4 | 432 tokens, 0 replies differ | 50.0 | "
        "75.0 | 1.50 | 20.00, 21.00 |",
        "| tiny, float32 | transformers alone, without drafts | pieces | no drafts | 10.0 |  |  | 100.00 |",
    ):
        assert row in said.splitlines()
    assert f"torch {torch.__version__}" in said
    assert attempt_records() == []  # all is well: what an earlier start gave up is tried again


def test_a_failure_or_another_word_is_an_exit_status() -> None:
    died = {"failed": "the program ended with -11: it said nothing"}
    other = {**FOUND, "verify": {"tokens": 9, "mismatches": 1}}
    for worse, why in ((died, "ended with -11"), (other, "1 replies differ")):
        code, said, _ = tried({"slots": worse, "plain": UNDRAFTED})
        assert (code, why in said) == (1, True)
        assert len(attempt_records()) == 1


@pytest.mark.large  # a process that imports torch
def test_each_way_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nobody" in gpu.in_process("nobody", "slots", "cpu")["failed"]
    monkeypatch.setattr(gpu, "EACH_S", 0.001)
    assert gpu.in_process("tiny", "slots", "cpu")["failed"] == "it did not end within 0.001 seconds"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert gpu.in_process("tiny", "slots", "cpu")["failed"] == "the program ended with 1: it said nothing"


def test_doctor_says_what_computed_a_model_and_what_failed() -> None:
    assert computed()[0].text == "no model was computed by transformers yet"
    log = AttemptLog(AttemptRecord(model="tiny, nf4", device="NVIDIA Z9", made_with="any"), "key")
    log.end("rows", {"graphs": "RuntimeError: no"})
    (line,) = computed()
    failed = "CUDA graphs failed: RuntimeError: no"
    assert line.text == f"tiny, nf4, on NVIDIA Z9: our GPU kernels without graphs; {failed}"
    assert "benchmarks gpu" in line.advice
