"""The runner on torch: its logits against transformers, its threads and layouts, memory that runs out."""

import numpy as np
import pytest
import torch
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest, OutOfMemory, clear_memory_errors
from hierchat.engine.torch import torch_runner
from hierchat.engine.torch.segment_attention import CHUNK, lay_out
from hierchat.engine.torch.torch_runner import TorchRunner, TorchSequence
from tests.testing import tiny
from tests.testing.tiny import CONTEXT, VOCABULARY, fresh_steps, random_tokens, tiny_model, tokens_of


@pytest.mark.parametrize("bucket", [CHUNK, torch_runner.BUCKET])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_agree_with_transformers(
    kind: tiny.Kind, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_runner, "FIRST_SLOTS", CHUNK)  # so that the slots grow on the way
    monkeypatch.setattr(torch_runner, "CHUNK", bucket)
    ids = np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT - 12).tolist()
    with torch.inference_mode():
        expected = tiny_model(kind)(torch.tensor([ids])).logits[0].numpy()
    target = TorchRunner(tiny_model(kind), packed=False).open()
    rows = []
    for begin in range(0, len(ids), 30):
        block = ids[begin : begin + 30]
        rows.append(target.forward(block, range(-1, len(block) - 1)))
        target.commit(range(len(block)))
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=2e-4)
    assert target.tokens == ids


def test_what_is_no_number_goes_with_its_text() -> None:
    """Though it spoils what is read with it, and slots that are not seen: a weight of 0 does not take it out."""
    model, poison = tiny_model(), 7
    model.model.embed_tokens.weight[poison] = float("nan")
    runner = TorchRunner(model, packed=False)
    fresh, target = runner.open(), runner.open()
    fresh.read([1, 2, 3])
    for text in ([1, 2, 3, poison], [poison]):
        target.read(text)
        assert np.isnan(target.forward([4, 5], [-1, 0])[1]).all()
        target.rollback(3)
        assert target.tokens == [1, 2, 3]
        np.testing.assert_array_equal(target.forward([4], [-1])[0], fresh.forward([4], [-1])[0])


def test_sums_of_half_precision_are_not_rounded_on_the_way() -> None:
    """Four chunks, each of whose products alone would be rounded."""
    ids = np.random.default_rng(4).integers(0, VOCABULARY, CONTEXT).tolist()
    model = tiny_model().to(torch.bfloat16)
    with torch.inference_mode():
        expected = model.float()(torch.tensor([ids])).logits[0, -1].numpy()
    target = TorchRunner(model.to(torch.bfloat16)).open()
    assert target.runner.backend == "bfloat16"
    target.read(ids[:-1])
    row = target.forward(ids[-1:], [-1])[0]
    assert np.corrcoef(row, expected)[0, 1] > 0.999


def test_a_window_counts_positions_of_the_own_branch() -> None:
    """0 - 1 - 3, and 0 - 2: two positions back, the node's own counted as one."""
    window = sliding_window_causal_mask_function(2)
    layout = lay_out(2, [-1, 0, 0, 1])
    seen = (layout.mask(window)[layout.place] == 0)[:, :6].int().tolist()
    assert seen == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1]]
    plain = lay_out(9, [-1])
    assert plain.seen(window) == slice(8, 10)
    assert plain.seen(causal_mask_function) == slice(0, 10)


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
    engine, wanted, prompt = tiny.tiny_engine(), GenerationSettings(max_new_tokens=8), random_tokens(200)
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
