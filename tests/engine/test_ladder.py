"""The ladder with a fault at every rung: it ends at the right one, says why, and replies are right."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine import backends, fallback
from hierchat.engine.cuda.cuda_runner import CudaRunner, CudaSequence, Graphs
from hierchat.engine.fallback import (
    Landing,
    LandingNotes,
    NoAnswer,
    NoRung,
    NotRight,
    Rung,
    climb,
    forget_lost,
    landings,
    within,
)
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Runner
from hierchat.engine.selftest import expected, require_agreement, require_right_device
from hierchat.engine.torch.plain import PlainRunner, PlainSequence
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from hierchat.engine.verify import ArrayRows
from hierchat.models.load.loaded_model import LoadedModel
from hierchat.models.progress import DeviceError, DoesNotFitError, UnsupportedError
from tests.engine.drafters import TreeDrafter
from tests.engine.test_cuda_runner import pretended
from tests.testing.tiny import VOCABULARY, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

ORDER = ("graphs", "rows", "slots", "plain", "eager")
LENGTH = 300
WANTED = GenerationSettings(max_new_tokens=24)
PROMPT = random_tokens(20)


def healthy(model: Any) -> list[Rung]:
    """All five ways over a model on the processor, without their own self-tests: what a fault does is asked here."""

    def static(recorded: bool) -> Callable[[], Runner]:
        graphs = (lambda: Graphs(capture=pretended)) if recorded else (lambda: Graphs(capture=None))
        return lambda: CudaRunner(model, context_length=LENGTH, regime=(16, 16), graphs=graphs())

    def plain(attention: str) -> Callable[[], Runner]:
        def make() -> Runner:
            model.set_attn_implementation(attention)
            return PlainRunner(model, context_length=LENGTH)

        return make

    return [
        Rung("graphs", static(True)),
        Rung("rows", static(False)),
        Rung("slots", lambda: TorchRunner(model, packed=False, quantum=4, context_length=LENGTH)),
        Rung("plain", plain("sdpa"), drafts=False),
        Rung("eager", plain("eager"), drafts=False),
    ]


Fault = Callable[[Any], Any]
"""What a broken forward gives in place of its rows."""
hung = threading.Event()
"""A forward stands still."""
over = threading.Event()
"""The test has ended."""


def raises(rows: Any) -> Any:
    raise RuntimeError("PassManager::run failed\nand many lines of it")


def no_numbers(rows: Any) -> Any:
    return ArrayRows(np.full((4, VOCABULARY), np.nan, np.float32))


def other_tokens(rows: Any) -> Any:
    return ArrayRows(np.roll(np.array([rows[node] for node in range(4)]), 1, axis=1))


def hangs(rows: Any) -> Any:
    hung.set()
    over.wait()
    raise RuntimeError("at last")


def fills_memory(rows: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")


FAULTS: dict[str, tuple[Fault, str]] = {
    "raises": (raises, "RuntimeError: PassManager::run failed"),
    "no numbers": (no_numbers, "it computes no numbers"),
    "other tokens": (other_tokens, "its logits are"),
    "hangs": (hangs, "no answer within 300 seconds"),
    "fills memory": (fills_memory, "memory ran out"),
}


def broken(rung: Rung, fault: Fault) -> Rung:
    """The same way, whose sequences have forwards with a fault."""

    def make() -> Runner:
        runner = rung.make()
        kind = {CudaRunner: CudaSequence, TorchRunner: TorchSequence, PlainRunner: PlainSequence}[
            type(runner)
        ]
        sequence = runner.open()

        class Broken(kind):  # type: ignore[misc, valid-type]
            def forward(self, *given: Any, **named: Any) -> Any:
                return fault(super().forward(*given, **named))

        sequence.__class__ = Broken
        runner.open = lambda: sequence  # type: ignore[method-assign]
        return runner

    return rung._replace(make=make)


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """A failed rung's memory is collected; all that was there before need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def standing_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The limit is over as soon as a forward stands still, and never before."""

    def wait(thread: threading.Thread, limit: float) -> None:
        while thread.is_alive() and not hung.is_set():
            thread.join(0.01)
        hung.clear()

    hung.clear()
    over.clear()
    monkeypatch.setattr(fallback, "_wait", wait)
    yield
    over.set()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))


@cache
def right_reply() -> list[int]:
    engine = LocalEngine(PlainRunner(tiny_model(), context_length=LENGTH).open(), (), text_of)
    return tokens_of(fresh_steps(engine, PROMPT, WANTED))


def assert_replies_are_right(runner: Runner) -> None:
    engine = LocalEngine(runner.open(), (), text_of)
    for drafter in (None, TreeDrafter()):
        assert tokens_of(fresh_steps(engine, PROMPT, WANTED, drafter)) == right_reply()


def proof(model: Any) -> Callable[[Runner], None]:
    wanted = expected(model, VOCABULARY)
    assert wanted is not None
    return lambda runner: require_agreement(runner, wanted)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(len(ORDER)))
def test_the_first_rung_without_a_fault_is_taken(at: int, fault: str) -> None:
    model = tiny_model()
    prove = proof(model)
    how, reason = FAULTS[fault]
    rungs = [broken(rung, how) if number < at else rung for number, rung in enumerate(healthy(model))]
    landing = climb(rungs, prove, limit=300.0)
    assert landing.rung == ORDER[at]
    assert list(landing.failed) == list(ORDER[:at])
    assert all(said.startswith(reason) for said in landing.failed.values())
    assert_replies_are_right(landing.runner)


@pytest.mark.parametrize("fault", FAULTS)
def test_where_every_rung_fails_all_reasons_are_told(fault: str) -> None:
    model = tiny_model()
    how, reason = FAULTS[fault]
    with pytest.raises(NoRung) as caught:
        climb([broken(rung, how) for rung in healthy(model)], proof(model), limit=300.0)
    assert list(caught.value.failed) == list(ORDER)
    assert all(said.startswith(reason) for said in caught.value.failed.values())
    assert caught.value.memory == (fault == "fills memory")


def inexact(rung: Rung) -> Rung:
    def make() -> Runner:
        runner = rung.make()
        runner.exact = False
        return runner

    return rung._replace(make=make)


def test_an_exact_way_comes_before_a_faster_one_that_is_not() -> None:
    model = tiny_model()
    rungs = healthy(model)
    landing = climb([inexact(rungs[0]), inexact(rungs[1]), *rungs[2:]], proof(model))
    assert landing.rung == "slots"
    assert landing.failed == {"graphs": fallback.INEXACT, "rows": fallback.INEXACT}


def test_where_no_way_is_exact_the_fastest_drafts() -> None:
    model = tiny_model()
    first, second, third, *plain = healthy(model)
    rungs = [broken(first, raises), inexact(second), inexact(third), *plain]
    landing = climb(rungs, proof(model))
    assert landing.rung == "rows"
    assert list(landing.failed) == ["graphs"]
    assert not landing.runner.exact
    assert_replies_are_right(landing.runner)


def test_a_device_that_answers_no_more_ends_the_climb_and_is_remembered() -> None:
    model = tiny_model()
    prove, rungs = proof(model), healthy(model)

    def notes() -> LandingNotes:
        return LandingNotes("tiny", "key", "a GPU", "these versions")

    alive = [False]
    with pytest.raises(NoRung) as caught:
        climb(
            [broken(rungs[0], hangs), *rungs[1:]],
            prove,
            limit=300.0,
            answers=lambda: alive[0],
            notes=notes(),
        )
    assert caught.value.device
    landing = climb(rungs, prove, notes=notes())  # the next start, where it would hang again
    assert landing.rung == "rows"
    assert "no answer" in landing.failed["graphs"]
    forget_lost()
    assert climb(rungs, prove, notes=notes()).rung == "graphs"


def test_a_rung_at_which_the_program_ended_twice_is_left_out() -> None:
    for _ in range(2):
        notes = LandingNotes("tiny", "key", "a GPU", "these versions")
        assert notes.skip("graphs") is None
        notes.trying("graphs")  # and there the program ends
    again = LandingNotes("tiny", "key", "a GPU", "these versions")
    assert "ended 2 times" in (again.skip("graphs") or "")
    assert LandingNotes("tiny", "key", "a GPU", "other versions").skip("graphs") is None


def test_a_rung_that_was_passed_counts_no_earlier_end() -> None:
    LandingNotes("tiny", "key", "a GPU", "these versions").trying("graphs")
    passed = LandingNotes("tiny", "key", "a GPU", "these versions")
    passed.tried("graphs")
    passed.trying("graphs")
    assert LandingNotes("tiny", "key", "a GPU", "these versions").skip("graphs") is None


def test_damaged_notes_count_as_none(tmp_path: Path) -> None:
    LandingNotes("tiny", "key", "a GPU", "these versions").landed(Landing(None, "rows"), "")  # type: ignore[arg-type]
    (file,) = (tmp_path / "cache" / "ladder").iterdir()
    file.write_text("{")
    assert landings() == []
    assert LandingNotes("tiny", "key", "a GPU", "these versions").skip("rows") is None


def test_nobody_waits_for_what_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(NoAnswer, match=r"within 0\.05 seconds"):
        within(0.05, over.wait)
    assert within(600.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(600.0, lambda: 1 // 0)


def loaded(model: Any) -> LoadedModel:
    return LoadedModel("tiny", model, None, "cpu", "float32", "none", "float32", LENGTH, "key", frozenset())


def test_what_failed_is_said_to_the_user_and_kept_for_doctor() -> None:
    model = tiny_model()
    rungs = healthy(model)
    landing = backends.land_over(loaded(model), [broken(rungs[1], raises), *rungs[2:]])
    said = backends.remark(landing)
    assert said.startswith(
        "It is computed by PyTorch's own operations: what is faster failed here (our GPU kernels"
    )
    assert "PassManager::run failed" in said
    (kept,) = landings()
    assert (kept.model, kept.rung, list(kept.failed)) == ("tiny, float32", "slots", ["rows"])
    assert backends.remark(Landing(landing.runner, "slots")) == ""


def test_on_the_processor_the_last_reason_is_the_error() -> None:
    model = tiny_model()
    with pytest.raises(UnsupportedError, match="tiny cannot be computed here: it computes no numbers"):
        backends.land_over(loaded(model), [broken(healthy(model)[3], no_numbers)])
    with pytest.raises(DoesNotFitError, match="Memory ran out"):
        backends.land_over(loaded(model), [broken(healthy(model)[3], fills_memory)])
    (kept,) = landings()
    assert kept.rung == ""
    assert kept.failed == {"plain": "memory ran out"}


def test_int8_has_a_reason_of_its_own() -> None:
    runner = TorchRunner(tiny_model(), packed=False, quantum=4, context_length=LENGTH)
    one = loaded(runner.model)
    assert backends.why_inexact(one, runner) == ""
    runner.exact = False
    assert backends.why_inexact(one, runner) == fallback.INEXACT
    assert "int8" in backends.why_inexact(replace(one, quantisation="int8"), runner)


def test_logits_that_are_other_numbers_are_no_agreement() -> None:
    model = tiny_model()
    wanted = expected(model, VOCABULARY)
    assert wanted is not None
    runner = TorchRunner(model, packed=False, quantum=4, context_length=LENGTH)
    require_agreement(runner, wanted)
    with pytest.raises(NotRight, match="standard deviations"):
        require_agreement(runner, wanted[:, ::-1])
    require_agreement(runner, None)  # transformers alone could not


def test_a_device_is_compared_with_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    require_right_device(torch.device("cpu"), torch.float32)
    with pytest.raises(NotRight, match="cannot be computed there"):
        require_right_device(torch.device("meta"), torch.float32)  # computes nothing
    monkeypatch.setattr("hierchat.engine.selftest.difference", lambda *rows: 1.2)
    monkeypatch.setattr("transformers.LlamaForCausalLM.to", lambda model, *where: model)
    with pytest.raises(NotRight, match=r"1\.2 standard deviations"):
        require_right_device(torch.device("meta"), torch.float32)


def test_a_gpu_that_fails_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> None:
        raise NotRight("it computes nonsense")

    class Elsewhere:
        device, dtype = torch.device("meta"), torch.float32

    monkeypatch.setattr("hierchat.engine.selftest.require_right_device", wrong)
    with pytest.raises(DeviceError, match=r"meta does not compute as it should \(it computes nonsense\)"):
        backends.land_over(loaded(Elsewhere()), [])
