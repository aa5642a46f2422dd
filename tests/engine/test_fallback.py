"""Which runner computes a model: every way is tried and proves itself, the first without a fault is taken, and the
reasons are told."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.engine import backends, fallback
from hierchat.engine.cuda.cuda_runner import CudaRunner
from hierchat.engine.cuda.graphs import Graphs
from hierchat.engine.fallback import AttemptLog, Implementation, NoImplementation, NotRight, Selection
from hierchat.engine.local import LocalEngine, measure
from hierchat.engine.runner import Runner
from hierchat.engine.selftest import expected, require_agreement, require_right_device
from hierchat.engine.torch.plain import PlainRunner
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from hierchat.engine.verification import ArrayRows, Rows
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from hierchat.models.load.check import expected_step
from hierchat.models.load.load_model import LoadedModel
from hierchat.models.progress import DeviceError, DoesNotFitError, UnsupportedError
from tests.engine.drafters import Noise
from tests.engine.test_cuda_runner import pretended
from tests.testing.families import tiny_family
from tests.testing.tiny import VOCABULARY, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

ORDER = ("graphs", "rows", "slots", "plain", "eager")
LENGTH = 300


def ways(model: Any) -> list[Implementation]:
    """All five over a model on the processor, without their own self-tests."""

    def static(graphs: Graphs[Any]) -> Runner:
        return CudaRunner(model, context_length=LENGTH, regime=(16, 16), graphs=graphs)

    def plain(attention: str) -> Runner:
        model.set_attn_implementation(attention)
        return PlainRunner(model, context_length=LENGTH)

    return [
        Implementation("graphs", lambda: static(Graphs(capture=pretended))),
        Implementation("rows", lambda: static(Graphs(capture=None))),
        Implementation("slots", lambda: TorchRunner(model, packed=False, quantum=4, context_length=LENGTH)),
        Implementation("plain", lambda: plain("sdpa"), drafts=False),
        Implementation("eager", lambda: plain("eager"), drafts=False),
    ]


def test_every_way_proves_itself_and_writes_the_same_reply() -> None:
    model, prompt = tiny_model(), random_tokens(20)
    wanted, replies = expected(model, VOCABULARY), set[tuple[int, ...]]()
    for way in ways(model):
        runner = way.make()
        require_agreement(runner, wanted)
        engine = LocalEngine(runner.open(), (), text_of)
        for drafter in (None, Noise()):
            steps = fresh_steps(engine, prompt, GenerationSettings(max_new_tokens=24), drafter)
            replies.add(tuple(tokens_of(steps)))
    assert [len(reply) for reply in replies] == [24]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda rows: np.full_like(rows, np.nan), "it computes no numbers"),
        (lambda rows: np.roll(rows, 1, axis=1), "its logits are"),
    ],
)
def test_wrong_numbers_are_found(
    wrong: Callable[[np.ndarray], np.ndarray], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, right = tiny_model(), TorchSequence.forward
    wanted = expected(model, VOCABULARY)

    def forward(self: TorchSequence, *given: Any, **named: Any) -> Rows:
        return ArrayRows(wrong(np.array(right(self, *given, **named))))

    monkeypatch.setattr(TorchSequence, "forward", forward)
    with pytest.raises(NoImplementation, match=reason):
        Selection(lambda runner: require_agreement(runner, wanted)).first_of(ways(model)[2:3])


hung = threading.Event()
"""Something stands still."""
over = threading.Event()
"""The test has ended."""


def raises() -> None:
    raise RuntimeError("PassManager::run failed\nand many lines of it")


def no_numbers() -> None:
    raise NotRight("it computes no numbers")


def hangs() -> None:
    hung.set()
    over.wait()


def fills_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")


FAULTS = {
    raises: "RuntimeError: PassManager::run failed",
    no_numbers: "it computes no numbers",
    hangs: "no answer within 300 seconds",
    fills_memory: "memory ran out",
}


def scripted(at: int, fault: Callable[[], None] = lambda: None, exact: bool = True) -> Implementation:
    """A way that does nothing, or fails."""

    def make() -> Any:
        fault()
        return SimpleNamespace(exact=exact)

    return Implementation(ORDER[at], make, drafts=at < 3)


def prove(runner: Runner) -> None:
    """Believe it."""


@pytest.fixture(autouse=True)
def standing_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The limit is over as soon as something stands still, and never before."""

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


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_one_without_a_fault_is_taken(fault: Callable[[], None]) -> None:
    for at in range(5):
        order = [scripted(place, fault if place < at else lambda: None) for place in range(5)]
        selected = Selection(prove, 300.0).first_of(order)
        assert selected.implementation == ORDER[at]
        assert list(selected.failed) == list(ORDER[:at])
        assert all(said.startswith(FAULTS[fault]) for said in selected.failed.values())
    with pytest.raises(NoImplementation) as caught:
        Selection(prove, 300.0).first_of([scripted(place, fault) for place in range(5)])
    assert list(caught.value.failed) == list(ORDER)
    assert caught.value.memory == (fault is fills_memory)


def test_an_exact_way_comes_before_a_faster_one_that_is_not() -> None:
    order = [scripted(0, exact=False), scripted(1, exact=False), *(scripted(at) for at in (2, 3, 4))]
    selected = Selection(prove).first_of(order)
    assert selected.implementation == "slots"
    assert selected.failed == {"graphs": fallback.INEXACT, "rows": fallback.INEXACT}


def test_where_no_way_is_exact_the_fastest_drafts() -> None:
    order = [scripted(0, raises), *(scripted(at, exact=at > 2) for at in (1, 2, 3, 4))]
    selected = Selection(prove).first_of(order)
    assert selected.implementation == "rows"
    assert list(selected.failed) == ["graphs"]
    assert not selected.runner.exact


def test_a_device_that_answers_no_more_ends_the_search_and_is_remembered() -> None:
    with pytest.raises(NoImplementation) as caught:
        Selection(prove, 300.0, lambda: False, notes()).first_of([scripted(0, hangs), scripted(1)])
    assert caught.value.device
    order = [scripted(0), scripted(1)]
    selected = Selection(prove, log=notes()).first_of(order)  # the next start, where it would hang again
    assert selected.implementation == "rows"
    assert "no answer" in selected.failed["graphs"]
    for file in fallback.folder().glob("*.json"):
        file.unlink()
    assert Selection(prove, log=notes()).first_of(order).implementation == "graphs"


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
    return LoadedModel("tiny", model, None, "cpu", "none", "float32", LENGTH, "key", frozenset())


def test_what_failed_is_said_to_the_user_and_kept_for_doctor() -> None:
    model = tiny_model()
    selected = backends.select_from(loaded(model), [scripted(0, raises), *ways(model)[2:]])
    said = backends.remark(selected)
    assert said.startswith(
        "It is computed by PyTorch's own operations: what is faster failed here (CUDA graphs"
    )
    assert "PassManager::run failed" in said
    (kept,) = fallback.attempt_records()
    assert (kept.model, kept.implementation, list(kept.failed)) == ("tiny, float32", "slots", ["graphs"])
    assert backends.remark(fallback.Selected(selected.runner, "slots")) == ""


def test_on_the_processor_the_last_reason_is_the_error() -> None:
    one = loaded(tiny_model())
    with pytest.raises(UnsupportedError, match="tiny cannot be computed here: it computes no numbers"):
        backends.select_from(one, [scripted(3, no_numbers)])
    with pytest.raises(DoesNotFitError, match="Memory ran out"):
        backends.select_from(one, [scripted(3, fills_memory)])
    (kept,) = fallback.attempt_records()
    assert kept.implementation == ""
    assert kept.failed == {"plain": "memory ran out"}


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


# Which runner a loaded model of transformers gets


def test_a_recurrent_model_gets_the_plain_runner() -> None:
    runner = backends.select_implementation(loaded(tiny_family("mamba"))).runner
    assert isinstance(runner, PlainRunner)
    assert not runner.drafts
    curve = LatencyCurve()
    measure(curve, runner.open(), seconds=0.0)
    assert curve.step_ms(0)[0] > 0


def fails(*given: Any, **named: Any) -> None:
    raise TypeError("an argument that nobody expected")


def test_one_that_cannot_draft_answers_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.engine.torch.torch_runner.TorchRunner.run", fails)
    runner = backends.select_implementation(
        replace(loaded(tiny_family("gemma2")), model_key="not tested before")
    ).runner
    assert isinstance(runner, PlainRunner)
    assert runner.open().forward([5, 6], [-1, 0])[1].any()


def test_states_whose_rows_are_not_exact_take_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    on_card = replace(loaded(tiny_family("lfm2")), device="cuda", model_key=None)
    graphs, plain, _ = backends.implementations(on_card)
    assert (graphs.name, plain.name) == ("graphs", "plain")
    assert graphs.make().exact
    monkeypatch.setattr("hierchat.engine.cuda.cuda_runner.invariant", lambda *given, **named: False)
    with pytest.raises(NotRight, match="would change words"):
        graphs.make()


def test_the_step_is_told_before_anything_is_here(tmp_path: Path) -> None:
    def told(kind: str | None, device: str = "cpu", backend: str | None = None) -> str | None:
        source = {"gguf": {"repo": "some/model", "file": "model.gguf"}}
        entry = ModelEntry.model_validate({"name": "it", "source": source, "kind": kind})
        return expected_step(entry, device, backend)

    found = [told(kind) for kind in ("qwen3", "cohere2", "brand_new", None)]
    assert found == ["kernels", "slots", "plain", None]
    assert told("qwen3", backend="float16") == told("cohere2") == "slots"
    assert told("lfm2_moe") == "kernels"
    folder = ModelEntry(
        name="it", source=ModelSource(folder=Folder(path=tmp_path)), blocks=8, context_length=None
    )
    assert expected_step(folder, "cpu") is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "cohere2"}))
    assert expected_step(folder, "cpu") == "slots"
