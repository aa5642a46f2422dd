"""The head of a GGUF file, against gguf's own reader."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hierchat.models.formats import gguf_head
from hierchat.models.formats.gguf_config import completed, gguf_config
from hierchat.models.formats.gguf_head import Head, Tensor, read_head, whole_models
from hierchat.models.progress import BrokenFileError
from tests.testing.architectures import finish


def test_it_says_what_gguf_s_own_reader_says(tiny_gguf: Path) -> None:
    head, reader = read_head(tiny_gguf), gguf.GGUFReader(tiny_gguf)
    assert (head.architecture, head.of_architecture("block_count")) == ("llama", 2)
    assert head.of_architecture("no_such_thing") is None
    for key, value in head.values.items():
        assert value == reader.fields[key].contents()
    arrays = {key for key, field in reader.fields.items() if gguf.GGUFValueType.ARRAY in field.types}
    left = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert set(reader.fields) - set(head.values) - arrays == left
    assert [(t.name, t.shape, t.type) for t in head.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name) for t in reader.tensors
    ]
    assert head.parameters == sum(int(tensor.n_elements) for tensor in reader.tensors)


def test_all_kinds_of_values(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "any")
    expected: dict[str, Any] = {
        "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -7, "uint32": 4_000_000_000, "int32": -9, "float32": 0.5,
        "bool": True, "string": "ß", "uint64": 2**60, "int64": -(2**60), "float64": 0.25,
    }  # fmt: skip
    for kind, value in expected.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_array("texts", ["x", "yy"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("t", np.zeros((3, 32), np.float16))
    finish(writer)
    head = read_head(path)
    assert {key: head.values[key] for key in expected} == expected
    assert (head.tensors[0].shape, head.tensors[0].type) == ((32, 3), "F16")


def test_what_is_cut_off_is_broken(tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    for keep in (0, 3, 4, 10, 24, 100, 2_000, 20_000, -1):
        path.write_bytes(tiny_gguf.read_bytes()[:keep])
        with pytest.raises(BrokenFileError, match=r"half\.gguf is no whole GGUF file"):
            read_head(path)
    with pytest.raises(BrokenFileError, match="cannot be read"):
        read_head(tmp_path)


def test_a_model_is_told_once_where_all_its_files_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert dict(whole_models(["b.gguf", *several])) == {"b.gguf": ["b.gguf"], several[0]: several}
    assert dict(whole_models(["b.gguf", *several[:2]])) == {"b.gguf": ["b.gguf"]}
    assert not dict(whole_models(several[1:]))
    asked: list[str] = []
    names = gguf_head.shard_names
    monkeypatch.setattr(gguf_head, "shard_names", lambda name: asked.append(name) or names(name))
    assert dict(whole_models(["a-00001-of-99999.gguf", "b.gguf"])) == {"b.gguf": ["b.gguf"]}
    assert asked == ["b.gguf"]  # what claims more files than there are is not followed


# What a GGUF file's head says counts, whatever transformers makes of the file.


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
    """Gemma scales its layers without a window."""
    given = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    plain = {"rope_type": "default", "rope_theta": 1e6}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    said = head("qwen2", **given, rope__scaling__original_context_length=32768)
    assert completed({"rope_parameters": {**plain}}, said)["rope_parameters"] == plain | yarn
    windowed = {"rope_type": "default", "rope_theta": 1e4}
    kinds = {"full_attention": {**plain}, "sliding_attention": {**windowed}}
    given = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    found = completed({"rope_parameters": kinds}, head("gemma3", **given))["rope_parameters"]
    linear = plain | {"rope_type": "linear", "factor": 8.0}
    assert found == {"full_attention": linear, "sliding_attention": windowed}


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
    expected = {
        "num_key_value_heads": 8, "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
        "attention_k_eq_v": True, "enable_moe_block": False, "intermediate_size": 15360, "use_double_wide_mlp": False,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["layer_types"][4:6] == ["sliding_attention", "full_attention"]
    wide = {**by_layer, "gemma4.feed_forward_length": [6144] * 24 + [12288] * 24}
    found = gguf_config(Head(plain.values, tensors, wide))
    assert (found["intermediate_size"], found["use_double_wide_mlp"]) == (6144, True)
