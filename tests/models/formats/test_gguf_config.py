"""What a GGUF file's head says counts, whatever transformers makes of the file."""

from __future__ import annotations

from typing import Any

import pytest

from hierchat.models.formats.gguf_config import completed, gguf_config
from hierchat.models.formats.gguf_head import Head, Tensor


def head(architecture: str, **values: Any) -> Head:
    own = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    return Head({"general.architecture": architecture, **own}, ())


@pytest.mark.parametrize(("each", "found"), [([4, 4, 4], 4), ([0, 4, 0], None), ([], None)])
def test_what_all_layers_have_alike_is_one_value(each: list[int], found: int | None) -> None:
    """Granite 4's files name key-value heads layer by layer, also where all layers have attention."""
    layered = {"granite.attention.head_count_kv": each}
    said = gguf_config(Head({"general.architecture": "granite", "granite.block_count": 3}, (), layered))
    assert said.get("num_key_value_heads") == found


def test_a_window_that_the_file_does_not_name_is_none() -> None:
    """transformers takes files called Mistral for models with its default window."""
    found = completed({"model_type": "mistral", "sliding_window": 4096}, head("llama"))
    assert (found["model_type"], found["sliding_window"]) == ("llama", None)
    gemma = completed({"sliding_window": 4096}, head("gemma3", attention__sliding_window=512))
    assert gemma["sliding_window"] == 512


def test_scaled_rotary_positions() -> None:
    given = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    found = completed(
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        head("qwen2", **given, rope__scaling__original_context_length=32768),
    )
    assert found["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }


def test_gemma_scales_its_layers_without_a_window() -> None:
    kinds = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    given = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    found = completed({"rope_parameters": kinds}, head("gemma3", **given))["rope_parameters"]
    assert found["full_attention"] == {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    assert found["sliding_attention"] == kinds["sliding_attention"]


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "size", "scalar"),
    [(18, 640, 4, 256, 256), (34, 2560, 8, 256, 256), (62, 5376, 32, 128, 168)],
)
def test_what_gemma_divides_scores_by(layers: int, hidden: int, heads: int, size: int, scalar: int) -> None:
    """270M, 4B, 27B."""
    given = {"attention__head_count": heads, "attention__key_length": size}
    found = gguf_config(head("gemma3", block_count=layers, embedding_length=hidden, **given))
    assert found["query_pre_attn_scalar"] == scalar


def test_layers_of_gemma_4_differ() -> None:
    """12B, as llama.cpp's converter writes it: no values in layers without a window, which are its keys."""
    windowed = ([True] * 5 + [False]) * 8
    given = {"attention__head_count": 16, "attention__key_length": 512, "attention__key_length_swa": 256}
    plain = head("gemma4", block_count=48, embedding_length=3840, feed_forward_length=15360, **given)
    by_layer = {
        "gemma4.attention.sliding_window_pattern": windowed,
        "gemma4.attention.head_count_kv": [8 if one else 1 for one in windowed],
    }
    tensors = (Tensor("blk.0.attn_v.weight", (3840, 2048), "Q4_K"),)
    found = gguf_config(Head(plain.values, tensors, by_layer))
    assert found["layer_types"][4:6] == ["sliding_attention", "full_attention"]
    assert (found["num_key_value_heads"], found["num_global_key_value_heads"]) == (8, 1)
    assert (found["head_dim"], found["global_head_dim"]) == (256, 512)
    assert found["attention_k_eq_v"]
    assert not found["enable_moe_block"]
    assert (found["intermediate_size"], found["use_double_wide_mlp"]) == (15360, False)
    wide = {**by_layer, "gemma4.feed_forward_length": [6144] * 24 + [12288] * 24}
    found = gguf_config(Head(plain.values, tensors, wide))
    assert (found["intermediate_size"], found["use_double_wide_mlp"]) == (6144, True)
