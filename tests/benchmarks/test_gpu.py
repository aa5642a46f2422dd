"""`python -m benchmarks gpu`, with the processor in a GPU's place."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from benchmarks import gpu, gpu_parts
from benchmarks.__main__ import main
from benchmarks.gpu import try_one
from benchmarks.report import write
from hierchat.checks.runs import RequestError
from hierchat.config import cache_dir
from hierchat.engine.cpu.runner import trial_runner  # compiled for the cache of all tests
from hierchat.engine.cuda.packed import FORMATS
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
UNDRAFTED = {**PLAIN, "implementation": "plain", "forward_ms": {"1": 100.0}}


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
    for figures in ("| 50.0 | 75.0 | 1.50 | 20.00, 21.00 |", "| 10.0 |  |  | 100.00 |"):
        assert figures in said
    assert attempt_records() == []  # all is well: what an earlier start gave up is tried again


def test_a_failure_or_another_word_is_an_exit_status() -> None:
    died = {"failed": "the program ended with -11: it said nothing"}
    other = {**FOUND, "verify": {"tokens": 9, "mismatches": 1}}
    for worse, why in ((died, "ended with -11"), (other, "1 replies differ")):
        code, said, _ = tried({"slots": worse, "plain": UNDRAFTED})
        assert (code, why in said) == (1, True)
        assert len(attempt_records()) == 1


# Everything that needs a card, over tiny shapes on the processor.


@pytest.mark.parametrize("name", gpu_parts.PARTS)
def test_a_part_runs_over_tiny_shapes(name: str, tmp_path: Path) -> None:
    gpu.measure_one(name, "cpu", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found.keys() == {"rows"}
    if name == "kernels":
        assert found["rows"].keys() == {*FORMATS, "Q4_K, experts"}
        assert all(row["rows never mix"] for row in found["rows"].values())
    elif name == "bandwidth":
        assert [*found["rows"]] == ["copy, read and written", *FORMATS]
    elif name == "users":
        assert [*found["rows"]] == ["1 at a time", "1 at a time, again", "4 at a time", "4 at a time, again"]
    elif name == "7B, 16 bits":
        assert [*found["rows"]] == [
            f"{product}, forward of {rows}" for product in ("library", "ours") for rows in ("1 row", "2 rows")
        ]
    else:
        assert found["rows"]["row invariance"]["exact"]
        assert found["rows"]["7 drafts a step, 1.35 tokens come"]["T"] >= 1
        assert {"forward of 1 row", "prompt of 40 tokens, again", "plain decoding"} <= found["rows"].keys()


def measured(out: Path, *, resume: bool, minutes: float = 1.0, failing: str = "") -> tuple[int, list[str]]:
    """The exit code, and the parts that were measured."""
    asked = []

    def measure(*which: str, seconds: float) -> dict[str, Any]:
        asked.append(which[0])
        if len(which) == 3:
            return FOUND
        return {"rows": {"a": {"GB/s": 1234.5}}} | ({"failed": "it died"} if which[0] == failing else {})

    return gpu.measure_parts(minutes, out, "cpu", resume, measure), asked


def test_a_part_that_fails_is_listed_and_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, ways = tmp_path / "out.json", ["tiny", "tiny"]
    assert measured(out, resume=True, failing="8B") == (1, [*gpu_parts.PARTS, *ways])
    assert "it died" in capsys.readouterr().out
    assert measured(out, resume=True) == (0, ["8B"])
    assert measured(out, resume=False, minutes=0.1) == (1, [])
    found = json.loads(out.read_text())
    assert found["parts"]["kernels"] == {"failed": "no time was left"}
    assert measured(out, resume=True)[0] == 0
    page = write([out], tmp_path).read_text()
    assert "kernels" in page
    assert "1,234" in page
    out.write_text(out.read_text().replace("the processor in", "another card in"))
    with pytest.raises(RequestError, match="holds another run: card was"):
        measured(out, resume=True)
