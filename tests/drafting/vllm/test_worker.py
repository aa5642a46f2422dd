"""What the worker classes do beside vLLM's own: they introduce the runner, and mend sampling on CPUs."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hierchat.drafting.vllm import worker as workers
from hierchat.drafting.vllm.worker import expanded


class Worker:
    """As vLLM's: loading makes the runner's drafter."""

    def __init__(self, drafter: Any) -> None:
        self.model_runner = SimpleNamespace()
        if drafter:
            self.model_runner.drafter = drafter

    def load_model(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (*args, kwargs)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a module of vLLM where it is imported from."""

    def put(name: str, **names: Any) -> None:
        above: ModuleType | None = None
        for end, part in enumerate(parts := name.split("."), 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
            if above:
                monkeypatch.setattr(above, part, sys.modules[path], raising=False)
            above = sys.modules[path]
        vars(above).update(names)

    return put


@pytest.mark.parametrize(
    ("module", "its", "name"),
    [("gpu_worker", "Worker", "GPUWorker"), ("cpu_worker", "CPUWorker", "CPUWorker")],
)
def test_the_drafter_gets_to_know_the_runner(
    modules: Callable[..., None], monkeypatch: pytest.MonkeyPatch, module: str, its: str, name: str
) -> None:
    modules(f"vllm.v1.worker.{module}", **{its: Worker})
    modules("vllm.v1.sample.rejection_sampler")
    monkeypatch.delitem(vars(workers), name, raising=False)
    worker = getattr(workers, name)
    assert getattr(workers, name) is worker
    bound: list[Any] = []
    made = worker(SimpleNamespace(bind=bound.append))
    assert made.load_model(1, dummy=True) == (1, {"dummy": True})
    assert bound == [made.model_runner]
    if name == "CPUWorker":
        assert sys.modules["vllm.v1.sample.rejection_sampler"].expand_batch_to_tokens is expanded
    worker(None).load_model()  # without speculation there is no drafter
    monkeypatch.delitem(vars(workers), name)
    with pytest.raises(AttributeError, match="TPUWorker"):
        workers.TPUWorker  # noqa: B018


def test_each_value_is_repeated_for_its_tokens() -> None:
    x, sums = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 3, 5], dtype=torch.int32)
    assert expanded(x, sums, 5, 0, 1).tolist() == pytest.approx([0.7, 0.7, 1.0, 1.3, 1.3])
