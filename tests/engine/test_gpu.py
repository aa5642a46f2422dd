"""The same promises on CUDA."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.engine.cuda.cuda_runner import FIRST_VIEW, CudaRunner, Out
from hierchat.engine.cuda.graphs import Graphs, capture
from hierchat.engine.cuda.mtp_layer import mtp_layer
from hierchat.engine.cuda.packed_modules import in_packed_blocks
from hierchat.engine.draft_head import MtpModuleHead
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.engine.runner import CachedSequence
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.load.load_model import load_on_card
from tests.engine.drafters import Buried, Noise
from tests.engine.test_batching import at_once, how, knowing
from tests.engine.test_mtp import assert_as_defined, target_and_layer, write_file
from tests.engine.test_triton import SHAPES, compare
from tests.testing.tiny import Kind, fresh_steps, random_tokens, text_of, tiny_model, tokens_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH = 1200
DTYPES = [torch.bfloat16, torch.float32]


def assert_same_words(target: CachedSequence) -> None:
    """Drafts change no word where the target is exact; where it is not, they still bring a whole reply."""
    engine = LocalEngine(target, (), text_of)
    for temperature in (0.0, 0.8):
        for length in (118, FIRST_VIEW - 10):
            wanted = GenerationSettings(temperature=temperature, max_new_tokens=32)
            prompt = random_tokens(length, vocabulary=12)
            vanilla = tokens_of(fresh_steps(engine, prompt, wanted))
            assert len(vanilla) == 32
            for drafter in (Drafter(), Noise(), Buried(vanilla)):
                reply = tokens_of(fresh_steps(engine, prompt, wanted, drafter))
                assert reply == vanilla if target.runner.exact else len(reply) == 32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("made", [CudaRunner, TorchRunner], ids=["graphs", "where Triton is missing"])
def test_speculative_equals_vanilla(made: type[Any], kind: Kind, dtype: torch.dtype) -> None:
    runner = made(tiny_model(kind).to("cuda", dtype), context_length=LENGTH)
    assert (runner.device.type, runner.backend) == ("cuda", str(dtype).removeprefix("torch."))
    assert made is TorchRunner or runner.exact
    assert_same_words(runner.open())


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_texts_at_a_time_have_the_words_that_each_has_alone(dtype: torch.dtype) -> None:
    runner = CudaRunner(tiny_model().to("cuda", dtype), context_length=LENGTH, sequences=4)
    assert (runner.exact, runner.shares_forward, runner.most_sequences) == (True, True, 4)
    engine = LocalEngine(runner.open(), (), text_of, 4)
    prompts = [random_tokens(length) for length in (1, 60, 300, FIRST_VIEW - 10)]
    alone = [
        tokens_of(engine.generate(GenerationRequest(prompt, how(user))))
        for user, prompt in enumerate(prompts)
    ]
    for drafters in ([None] * 4, [knowing(reply, user) for user, reply in enumerate(alone)]):
        engine.clear()
        asked = [(prompt, how(user), drafters[user]) for user, prompt in enumerate(prompts)]
        assert [tokens_of(steps) for steps in at_once(engine, asked)] == alone


def test_the_kernels_compute_what_is_said_plainly() -> None:
    compare("cuda", {torch.bfloat16: 0.02, torch.float32: 1e-4}, [*SHAPES, (32, 8, 128)])


def test_replays_compute_what_the_modules_do() -> None:
    graphs = Graphs[Out](capture=capture)
    model = tiny_model().to("cuda", torch.bfloat16)
    recorded = CudaRunner(model, context_length=LENGTH, regime=(16, 16), graphs=graphs).open()
    eager = CudaRunner(model, context_length=LENGTH, regime=(16, 16), graphs=Graphs(capture=None)).open()
    for length in (30, 500):
        for target in (recorded, eager):
            target.read(random_tokens(length))
        for seed in range(3):
            tokens, parents = random_tokens(12, seed), [-1, *range(6), *range(5)]
            rows = [target.forward(tokens, parents) for target in (recorded, eager)]
            assert np.array_equal([rows[0][i] for i in range(12)], [rows[1][i] for i in range(12)])
    assert len(graphs.held) == 4


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_layer_that_drafts_computes_what_the_model_defines(name: str, tmp_path: Path) -> None:
    target, layer = target_and_layer(name)
    loaded = load_on_card(write_file(name, target, layer, tmp_path / "tiny.gguf", packed=True), "cuda")
    own = mtp_layer(in_packed_blocks(loaded.model), tmp_path / "tiny.gguf")
    head = MtpModuleHead(own, 256, 4, None)
    assert (head.runner.exact, head.runner.backend) == (True, "blocks")
    for _ in range(2):
        assert_as_defined(head, layer, 0.1)


def test_a_full_memory_is_one_error() -> None:
    from hierchat.engine.engine import OutOfMemory, clear_memory_errors

    with pytest.raises(OutOfMemory), clear_memory_errors():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("target", [CudaRunner, TorchRunner])
def test_nf4(tmp_path: Path, target: type[CudaRunner | TorchRunner]) -> None:
    pytest.importorskip("bitsandbytes")
    tiny_model().save_pretrained(tmp_path)
    how = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, device_map={"": "cuda"}, quantization_config=how
    )
    kinds = {type(module).__name__ for module in model.modules()}
    assert "Linear4bit" in kinds
    made = target(model.eval(), context_length=LENGTH)
    assert made.backend == "nf4"
    assert_same_words(made.open())
