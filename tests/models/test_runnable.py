"""The table of what can be computed says the truth."""

import re
from typing import Any

import pytest
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hierchat.models.architectures.families import ARCHITECTURES, GGUF_ARCHITECTURES, HEAD, Architecture
from hierchat.models.architectures.model_config import expected
from hierchat.models.formats.gguf_config import MODEL_TYPES, READ_BY_TRANSFORMERS
from hierchat.models.formats.gguf_head import Head, Tensor
from hierchat.models.runnable import (
    ALWAYS_EXPERTS,
    ATTENTION,
    KEEPING_STATES,
    MADE_FOR_ELSE,
    SLOTTED,
    UNGRAPHED,
    gguf_refused,
    gguf_unsupported,
    graphed,
    refused,
    step,
)
from tests.testing.architectures import CONFIGS


def test_transformers_reads_the_files_that_are_said_so() -> None:
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    theirs = {name.replace("_moe", "moe") for name in GGUF_SUPPORTED_ARCHITECTURES}
    assert theirs >= READ_BY_TRANSFORMERS
    # Of Gemma 4 it does not read what differs from layer to layer; LFM2 has kernels of its own
    assert theirs & (set(GGUF_ARCHITECTURES) - READ_BY_TRANSFORMERS) <= {"gemma4", "lfm2"}


def test_lists_name_what_transformers_knows() -> None:
    assert set(MADE_FOR_ELSE) <= set(CONFIG_MAPPING_NAMES)
    assert not set(MADE_FOR_ELSE) & {*MODEL_TYPES.values(), *SLOTTED, *KEEPING_STATES}
    assert "not to chat" in str(refused({"model_type": "t5"}))
    assert refused({"model_type": "brand_new"}) is None
    # Granite MoE is like Granite's hybrids, with layers of attention alone
    hybrids = {name for name, one in ARCHITECTURES.items() if one.mixers and one.full_every != 1}
    assert hybrids <= KEEPING_STATES
    assert (set(ARCHITECTURES) - hybrids) | UNGRAPHED <= SLOTTED <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - SLOTTED >= KEEPING_STATES >= ALWAYS_EXPERTS
    assert {"full_attention", "sliding_attention"} <= ATTENTION


STEPS: list[tuple[dict[str, Any], str, str]] = [
    ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "slots", "slots"),
    ({"model_type": "gemma3", "text_config": {"model_type": "brand_new"}}, "plain", "plain"),
    ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, "plain", "slots"),
    ({"model_type": "granitemoehybrid", "num_local_experts": 0}, "plain", "slots"),
    ({"model_type": "granitemoehybrid", "num_local_experts": 64}, "plain", "plain"),
    ({"model_type": "nemotron_h", "layers_block_type": ["linear_attention", "moe"]}, "plain", "plain"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E"}, "plain", "plain"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-"}, "plain", "slots"),
    ({"model_type": "qwen3_next"}, "plain", "plain"),
    ({"model_type": "glm4_moe_lite", "n_routed_experts": 64}, "plain", "slots"),
    ({"model_type": "brand_new"}, "plain", "plain"),
]


@pytest.mark.parametrize(("config", "on_cpu", "on_cuda"), STEPS)
def test_the_step_is_told_by_the_configuration_alone(
    config: dict[str, Any], on_cpu: str, on_cuda: str
) -> None:
    """With experts or running states, transformers' modules take drafts on GPUs alone, and with both not at all."""
    pytest.importorskip("triton")
    assert step(config, own=True) == step(config, own=False) == on_cpu
    assert step(config, own=False, device="cuda:0") == on_cuda


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, True),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, True),
        ({"model_type": "qwen3_next"}, False),
        ({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}, False),
        ({"model_type": "brand_new"}, False),
    ],
)
def test_what_graphs_compute_is_told_by_the_kind(config: dict[str, Any], expected: bool) -> None:
    assert graphed(config) == expected


HEADS = {"attention.key_length": 32, "attention.key_length_swa": 16, "attention.head_count_kv": 2}
GEMMA4 = {**HEADS, "attention.shared_kv_layers": 1}
EIGHT = {"expert_count": 8, "expert_used_count": 2}


def head(
    architecture: str, tensor_type: str = "Q4_K", tensor: str = "blk.0.ffn_up.weight", **values: Any
) -> Head:
    """The head of a file of Qwen2's shape."""
    shape = {"block_count": 2, "context_length": 256, "embedding_length": 256, "feed_forward_length": 512}
    own = {
        f"{architecture}.{key}": value
        for key, value in {**shape, "attention.head_count": 4, **values}.items()
        if value is not None
    }
    return Head({"general.architecture": architecture, **own}, (Tensor(tensor, (256, 512), tensor_type),))


CPU_ONLY = "only the CPU engine reads such a file"


@pytest.mark.parametrize(
    ("file", "own", "through"),
    [
        (head("qwen2"), None, None),
        (head("qwen2", "NVFP4"), "block type NVFP4", None),
        (head("phi3", **{"attention.sliding_window": 64}), None, None),
        (head("gpt2"), "architecture gpt2", None),
        (head("qwen3moe", **EIGHT), "tensor blk.0.ffn_up.weight, which qwen3_moe does not have", None),
        (head("qwen3moe", **EIGHT, expert_feed_forward_length=40), "no whole", None),
        (head("qwen3moe", tensor="blk.1.ffn_gate_exps.weight", **EIGHT), None, None),
        (head("qwen3moe", expert_count=8, expert_used_count=9), "8 experts of which 9", None),
        (head("llama", expert_count=8), "several experts", "several experts"),
        (head("llama", **{"attention.head_count": None}), "different shapes", None),
        (head("llama", tensor="rope_freqs.weight"), None, None),
        (head("llama", tensor="blk.0.attn_q.bias"), "blk.0.attn_q.bias, which llama does not have", None),
        (head("llama", embedding_length=100), "no whole blocks", None),
        (head("llama", **{"rope.scaling.type": "longrope"}), "rope scaling longrope", None),
        (head("llama", **{"rope.scaling.type": "none"}), None, None),
        (head("gemma3", **{"attention.sliding_window": 64}), None, None),
        (head("gemma3", tensor="blk.0.post_ffw_norm.weight"), None, None),
        (head("gemma4"), "heads whose sizes", CPU_ONLY),
        (head("gemma4", **GEMMA4), None, CPU_ONLY),
        (head("gemma4", tensor="blk.1.proj.weight", **GEMMA4), "blk.1.proj.weight", CPU_ONLY),
        (head("granite"), None, CPU_ONLY),
        (head("granite", **{"rope.scaling.finetuned": False}), "without rotary positions", CPU_ONLY),
        (head("granite", "NVFP4"), "block type NVFP4", "and does not compute block type NVFP4"),
        (head("gpt-oss", "MXFP4", "blk.0.ffn_down_exps.bias", **EIGHT), None, CPU_ONLY),
        (head("wordpainter"), "architecture wordpainter", "a file (known are cohere2, exaone4, gemma2, "),
        (Head({}, ()), "architecture ", "no way is known"),
    ],
)
def test_gguf_files(file: Head, own: str | None, through: str | None) -> None:
    for reason, said in ((gguf_unsupported(file), own), (gguf_refused(file), through)):
        assert (reason is None) == (said is None), reason
        assert (said or "") in (reason or "")


def test_every_architecture_is_listed_once_and_tried() -> None:
    # One of Nemotron-H's has two names there, and both kinds of Granite MoE have one
    assert len(ARCHITECTURES) == len(GGUF_ARCHITECTURES)
    hybrids = {name for name, one in ARCHITECTURES.items() if one.mixers}  # test_hybrids.py
    assert {config.model_type for config in CONFIGS.values()} == set(ARCHITECTURES) - hybrids


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_its_tensors_are_known_to_gguf(architecture: Architecture) -> None:
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    if (its := architecture.gguf or architecture.model_type) not in kinds:
        pytest.skip("a name that transformers alone gives")
    several = [its, "nemotron_h_moe"] if its == "nemotron_h" else [its]
    stems = {TENSOR_NAMES[kind].format(bid=0) for name in several for kind in MODEL_TENSORS[kinds[name]]}
    kinds_of_layers = ["full_attention", *(architecture.mixers if architecture.full_every != 1 else ())]
    sizes = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "vocab_size")
    states = [
        f"linear_{name}" for name in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim")
    ]
    states += ["linear_conv_kernel_dim", "conv_L_cache"]
    states += ["n_groups", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "conv_kernel"]
    config = {**dict.fromkeys((*sizes, *states), 32), "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_experts_per_tok": 2, "model_type": architecture.model_type}
    routed = "router" in architecture.matrices or architecture.routed
    config |= {"num_experts": 4} if routed else {"hidden_size_per_layer_input": 32}
    if architecture.mixers:
        config |= {"num_hidden_layers": len(kinds_of_layers), "layer_types": kinds_of_layers}
    for name in {one.name for one in expected(config)} - {HEAD}:  # Gemma 2 has none of its own
        stem = re.sub(r"^blk\.\d+", "blk.0", name.gguf)
        assert stem in stems or stem.rsplit(".", 1)[0] in stems
