"""Every implementation with a fault: the right one is taken, the reasons are told, and replies are right."""

from __future__ import annotations

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
from hierchat.engine.fallback import AttemptLog, Implementation, NoImplementation, NotRight, Selection
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import Runner
from hierchat.engine.selftest import expected, require_agreement, require_right_device
from hierchat.engine.torch.plain import PlainRunner, PlainSequence
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from hierchat.engine.verification import ArrayRows
from hierchat.models.load.load_model import LoadedModel
from hierchat.models.progress import DeviceError, DoesNotFitError, UnsupportedError
from tests.engine.drafters import TreeDrafter
from tests.engine.test_cuda_runner import pretended
from tests.testing.tiny import VOCABULARY, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

ORDER = ("graphs", "rows", "slots", "plain", "eager")
LENGTH = 300
WANTED = GenerationSettings(max_new_tokens=24)
PROMPT = random_tokens(20)


def healthy(model: Any) -> list[Implementation]:
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
        Implementation("graphs", static(True)),
        Implementation("rows", static(False)),
        Implementation("slots", lambda: TorchRunner(model, packed=False, quantum=4, context_length=LENGTH)),
        Implementation("plain", plain("sdpa"), drafts=False),
        Implementation("eager", plain("eager"), drafts=False),
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


def broken(way: Implementation, fault: Fault) -> Implementation:
    """The same way, whose sequences have forwards with a fault."""

    def make() -> Runner:
        runner = way.make()
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

    return way._replace(make=make)


@pytest.fixture(autouse=True)
def standing_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The limit is over as soon as a forward stands still, and never before."""

    real = fallback.wait

    def wait(answers: list[Any], limit: float) -> Any:
        while not answers[0].done() and not hung.is_set():
            real(answers, 0.01)
        hung.clear()
        return real(answers, 0)

    hung.clear()
    over.clear()
    monkeypatch.setattr(fallback, "wait", wait)
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


@pytest.mark.parametrize(
    ("at", "fault"),
    [(0, "raises"), *((at, fault) for at in (1, 4) for fault in FAULTS), (2, "hangs"), (3, "raises")],
)
def test_the_first_one_without_a_fault_is_taken(at: int, fault: str) -> None:
    model = tiny_model()
    prove = proof(model)
    how, reason = FAULTS[fault]
    ways = [broken(way, how) if number < at else way for number, way in enumerate(healthy(model))]
    selected = Selection(prove, 300.0).first_of(ways)
    assert selected.implementation == ORDER[at]
    assert list(selected.failed) == list(ORDER[:at])
    assert all(said.startswith(reason) for said in selected.failed.values())
    assert_replies_are_right(selected.runner)


@pytest.mark.parametrize("fault", FAULTS)
def test_where_every_one_fails_all_reasons_are_told(fault: str) -> None:
    model = tiny_model()
    how, reason = FAULTS[fault]
    with pytest.raises(NoImplementation) as caught:
        Selection(proof(model), 300.0).first_of([broken(way, how) for way in healthy(model)])
    assert list(caught.value.failed) == list(ORDER)
    assert all(said.startswith(reason) for said in caught.value.failed.values())
    assert caught.value.memory == (fault == "fills memory")


def inexact(way: Implementation) -> Implementation:
    def make() -> Runner:
        runner = way.make()
        runner.exact = False
        return runner

    return way._replace(make=make)


def test_an_exact_way_comes_before_a_faster_one_that_is_not() -> None:
    model = tiny_model()
    ways = healthy(model)
    selected = Selection(proof(model)).first_of([inexact(ways[0]), inexact(ways[1]), *ways[2:]])
    assert selected.implementation == "slots"
    assert selected.failed == {"graphs": fallback.INEXACT, "rows": fallback.INEXACT}


def test_where_no_way_is_exact_the_fastest_drafts() -> None:
    model = tiny_model()
    first, second, third, *plain = healthy(model)
    ways = [broken(first, raises), inexact(second), inexact(third), *plain]
    selected = Selection(proof(model)).first_of(ways)
    assert selected.implementation == "rows"
    assert list(selected.failed) == ["graphs"]
    assert not selected.runner.exact
    assert_replies_are_right(selected.runner)


def test_a_device_that_answers_no_more_ends_the_search_and_is_remembered() -> None:
    model = tiny_model()
    prove, ways = proof(model), healthy(model)

    with pytest.raises(NoImplementation) as caught:
        Selection(prove, 300.0, lambda: False, notes()).first_of([broken(ways[0], hangs), *ways[1:]])
    assert caught.value.device
    selected = Selection(prove, log=notes()).first_of(ways)  # the next start, where it would hang again
    assert selected.implementation == "rows"
    assert "no answer" in selected.failed["graphs"]
    fallback.forget_lost()
    assert Selection(prove, log=notes()).first_of(ways).implementation == "graphs"


def notes(made_with: str = "these versions") -> AttemptLog:
    return AttemptLog(fallback.AttemptRecord(model="tiny", device="a GPU", made_with=made_with), "key")


def test_a_one_at_which_the_program_ended_twice_is_left_out() -> None:
    for _ in range(2):
        log = notes()
        assert log.skip("graphs") is None
        log.trying("graphs")  # and there the program ends
    again = notes()
    assert "ended 2 times" in (again.skip("graphs") or "")
    assert notes("other versions").skip("graphs") is None


def test_damaged_notes_count_as_none(tmp_path: Path) -> None:
    notes().end("rows", {})
    (file,) = (tmp_path / "cache" / "ladder").iterdir()
    file.write_text("{")
    assert fallback.attempt_records() == []
    assert notes().skip("rows") is None


def loaded(model: Any) -> LoadedModel:
    return LoadedModel("tiny", model, None, "cpu", "float32", "none", "float32", LENGTH, "key", frozenset())


def test_what_failed_is_said_to_the_user_and_kept_for_doctor() -> None:
    model = tiny_model()
    ways = healthy(model)
    selected = backends.select_from(loaded(model), [broken(ways[1], raises), *ways[2:]])
    said = backends.remark(selected)
    assert said.startswith(
        "It is computed by PyTorch's own operations: what is faster failed here (our GPU kernels"
    )
    assert "PassManager::run failed" in said
    (kept,) = fallback.attempt_records()
    assert (kept.model, kept.implementation, list(kept.failed)) == ("tiny, float32", "slots", ["rows"])
    assert backends.remark(fallback.Selected(selected.runner, "slots")) == ""


def test_on_the_processor_the_last_reason_is_the_error() -> None:
    model = tiny_model()
    with pytest.raises(UnsupportedError, match="tiny cannot be computed here: it computes no numbers"):
        backends.select_from(loaded(model), [broken(healthy(model)[3], no_numbers)])
    with pytest.raises(DoesNotFitError, match="Memory ran out"):
        backends.select_from(loaded(model), [broken(healthy(model)[3], fills_memory)])
    (kept,) = fallback.attempt_records()
    assert kept.implementation == ""
    assert kept.failed == {"plain": "memory ran out"}


def test_int8_has_a_reason_of_its_own() -> None:
    runner = TorchRunner(tiny_model(), packed=False, quantum=4, context_length=LENGTH)
    one = loaded(runner.model)
    assert backends.why_inexact(one, runner) == ""
    runner.exact = False
    assert backends.why_inexact(one, runner) == fallback.INEXACT
    assert "int8" in backends.why_inexact(replace(one, quantisation="int8"), runner)


def test_where_transformers_alone_could_not_any_numbers_agree() -> None:
    require_agreement(TorchRunner(tiny_model(), packed=False, quantum=4, context_length=LENGTH), None)


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
        backends.select_from(loaded(Elsewhere()), [])
