"""Memory errors of every origin become one; others pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest, OutOfMemory, clear_memory_errors
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from tests.testing.tiny import fresh_steps, random_tokens, tiny_engine, tiny_model, tokens_of


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_memory_errors_say_what_to_change(error: Exception) -> None:
    with pytest.raises(OutOfMemory, match="context_length") as raised, clear_memory_errors():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [OutOfMemory("as it is"), RuntimeError("other"), ValueError("memory")])
def test_others_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, clear_memory_errors():
        raise error
    assert raised.value is error


@pytest.mark.parametrize("method", ["forward", "read", "commit"])
def test_after_it_the_next_reply_is_as_ever(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, wanted, prompt = tiny_engine(), GenerationSettings(max_new_tokens=8), random_tokens(200)
    expected = tokens_of(fresh_steps(engine, prompt, wanted))
    engine.sequence.rollback(0)
    real, calls = getattr(TorchSequence, method), 0

    def fails_second(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TorchSequence, method, fails_second)
        with pytest.raises(OutOfMemory):
            list(engine.generate(GenerationRequest(prompt, wanted)))
    assert tokens_of(engine.generate(GenerationRequest(prompt, wanted))) == expected


def test_slots_that_could_not_grow_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out at the second layer; later there is enough."""
    monkeypatch.setattr("hierchat.engine.torch.torch_runner.FIRST_SLOTS", 64)
    target, fresh = (TorchRunner(tiny_model(), packed=False, quantum=4).open() for _ in range(2))
    prompt = random_tokens(500)
    target.read(prompt[:60])
    with monkeypatch.context() as patch:
        patch.setattr(target.slots.layers[1], "grow", no_memory)
        with pytest.raises(MemoryError):
            target.read(prompt[60:])
    assert target.tokens == prompt[:60]
    target.read(prompt[60:])
    fresh.read(prompt)
    assert np.array_equal(target.forward([1], [-1]), fresh.forward([1], [-1]))


def no_memory(capacity: int) -> None:
    raise MemoryError
