"""Tiny random models and engines over them: a millisecond per forward, and a vocabulary so small that drafts hit."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.payoff import Payoff
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.local import LocalEngine
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.architectures.families import Name
from hierchat.models.architectures.model_config import experts_of
from hierchat.models.formats.assemble import TRANSFORMERS, RowOrder, assemble, whole
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.blocks import Blocks, from_floats, pack

Kind = Literal["llama", "qwen3", "gemma3"]
Backend = Literal["llama-float32", "llama-packed", "qwen3-float32", "llama-blocks", "qwen3-blocks"]
BACKENDS: tuple[Backend, ...] = (
    "llama-float32",
    "llama-packed",
    "qwen3-float32",
    "llama-blocks",
    "qwen3-blocks",
)
VOCABULARY = 97
CONTEXT = 512


def tiny_model(kind: Kind = "llama", seed: int = 0) -> Any:
    """Weights wide enough that greedy text wanders. Qwen3 has norms of queries and keys, and tied embeddings; Gemma 3
    these too, and two layers of three with a window that is smaller than a chunk of slots."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2 if kind == "llama" else 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": kind != "llama",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "llama":
            model = LlamaForCausalLM(LlamaConfig(**shape))
        elif kind == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**shape))
        else:
            model = Gemma3ForCausalLM(Gemma3TextConfig(**shape, sliding_window=50, sliding_window_pattern=3))
    return model.eval().requires_grad_(False)


def block_model(model: Any, pack: Callable[[NDArray[np.float32]], Blocks] | None = None) -> BlockModel:
    """A module of transformers for the CPU engine; its matrices as plain floats, or as `pack` makes them."""
    config = model.config.to_dict()
    experts = experts_of(config)[0]
    state = revert_weight_conversion(model, model.state_dict()) if experts else model.state_dict()

    def tensor(name: Name) -> NDArray[np.float32]:
        return whole(name, experts, lambda said: state[said].numpy())

    def matrix(name: Name, order: RowOrder | None = None) -> Blocks:
        floats = tensor(name) if order is None else tensor(name)[order]
        return pack(floats) if pack and "ffn_gate_inp" not in name.gguf else from_floats(floats)

    return assemble(config, tensor, matrix, TRANSFORMERS, tied=config["tie_word_embeddings"])


@cache
def _target(backend: Backend) -> Any:
    kind, how = backend.split("-")
    model = tiny_model("llama" if kind == "llama" else "qwen3")
    if how == "blocks":
        return CpuRunner(block_model(model, lambda floats: pack(floats, 8)), context_length=CONTEXT).open()
    return TorchRunner(model, packed=how == "packed").open()


def tiny_target(backend: Backend = "llama-float32") -> Any:
    """The one target of this backend, emptied."""
    if backend.endswith("packed") and "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this CPU has no FBGEMM")
    target = _target(backend)
    assert target.runner.exact
    target.rollback(0)
    return target


def text_of(tokens: Sequence[int]) -> str:
    """One character per token."""
    return "".join(chr(ord("一") + token) for token in tokens)


def tiny_engine(backend: Backend = "llama-float32", end_ids: Collection[int] = ()) -> LocalEngine:
    return LocalEngine(tiny_target(backend), end_ids, text_of)


def random_tokens(length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, length).tolist()


def fresh_steps(
    engine: LocalEngine,
    prompt: Sequence[int],
    settings: GenerationSettings,
    drafter: Drafter | None = None,
    payoff: Payoff | None = None,
) -> list[Step]:
    """All steps of a reply that reuses nothing."""
    engine.sequence.rollback(0)
    return list(engine.generate(GenerationRequest(prompt, settings, drafter, payoff=payoff)))


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Return the nodes of a draft tree from its root to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def bits(target: Any, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
    """The logits of a segment's nodes, copied."""
    rows = target.forward(tokens, parents)
    return np.array([rows[node] for node in range(len(tokens))])


def tokens_of(steps: Iterable[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]
