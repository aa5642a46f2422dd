"""Files whose tensors are not as their configuration says: each is refused in a sentence that names the tensor or the
key, before a kernel, which checks no bounds, gets any of it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.architectures.families import (
    GGUF_ARCHITECTURES,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
)
from hierchat.models.architectures.model_config import expected
from hierchat.models.catalogue import ModelEntry
from hierchat.models.formats import block_model, gguf_families, gguf_module
from hierchat.models.formats.assemble import pack_safetensors
from hierchat.models.formats.block_model import BlockModel, read_model, write_model
from hierchat.models.formats.blocks import from_floats, pack
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_head import head_in, read_head
from hierchat.models.formats.gguf_module import GgufModule
from hierchat.models.load.check import require_runnable_head
from hierchat.models.load.load_model import load
from hierchat.models.progress import BrokenFileError, ModelError, silent
from tests.gguf_files.models import DAILY, tiny_module
from tests.gguf_files.models import FAMILIES as FILES
from tests.models.test_hostile import gguf_of, whole, write
from tests.testing.architectures import CONFIGS, FAMILIES, model_of
from tests.testing.tiny import block_model as blocks_of
from tests.testing.tiny import tiny_model
from tests.testing.tiny_files import of_gguf

OWN = sorted(
    {*FAMILIES, "llama 3", "mistral", "qwen2, biases", "qwen3, norms", "qwen3 moe", "gpt-oss", "gemma3"}
)
F32, I32, UNKNOWN = 0, 26, 99
FACTORS = {ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS}


def wrong_shapes(shape: list[int]) -> Iterator[list[int]]:
    """The row's length first, as GGUF files have it."""
    *before, rows = shape
    yield [*before, 400 * rows]
    yield [*before, 0]
    yield [*shape, 2]
    yield [2**33, 2**33]
    yield [2**63, 2]
    if rows > 1:
        yield [*before, 1]
        yield [*before, rows - 1]
    if before and before[0] != rows:
        yield shape[::-1]
        yield [rows * before[0], *before[1:], 1]


def is_sentence(said: str) -> bool:
    return said.endswith(".") and "\n" not in said and "did not expect" not in said


def refused(entry: ModelEntry, raw: bytes) -> str:
    """Why a head is refused; empty where it is not."""
    try:
        head = head_in(raw)
        assert head
        require_runnable_head(entry, head, "cpu")
    except ModelError as error:
        return str(error)
    return ""


def of_first_layer(name: str) -> bool:
    return not name.startswith("blk.") or name.startswith("blk.0.")


def changed_heads(name: str) -> Iterator[tuple[str, bytes]]:
    """Heads of a sound file in which one tensor has another shape or type, behind all others, and its name."""
    values, tensors, size = whole(name)
    said = list(values.items())
    for at, (tensor, shape, kind, _) in enumerate(tensors):
        if not of_first_layer(tensor):
            continue
        behind = size // 32 * 32 + 32
        for wrong in wrong_shapes(shape):
            yield tensor, gguf_of(said, [*tensors[:at], (tensor, wrong, kind, behind), *tensors[at + 1 :]])
        for other in (I32, UNKNOWN) if kind == F32 else (UNKNOWN,):
            yield tensor, gguf_of(said, [*tensors[:at], (tensor, shape, other, behind), *tensors[at + 1 :]])


@pytest.mark.parametrize("name", OWN)
def test_every_tensor_of_every_family_has_its_shape_and_type(name: str, tmp_path: Path) -> None:
    values, tensors, _ = whole(name)
    entry, count = of_gguf(tmp_path / "tiny.gguf"), 0
    sound = head_in(gguf_of(list(values.items()), tensors))
    assert sound
    require_runnable_head(entry, sound, "cpu")
    for tensor, raw in changed_heads(name):
        said = refused(entry, raw)
        assert tensor in said
        assert is_sentence(said)
        count += 1
    assert count > 60


@pytest.mark.parametrize("name", ["llama 3", "gemma4", "gpt-oss"])
def test_what_is_missing_or_unknown_is_named(name: str, tmp_path: Path) -> None:
    values, tensors, size = whole(name)
    said, path = list(values.items()), tmp_path / "tiny.gguf"
    shape = next(shape for _, shape, _, _ in tensors if len(shape) == 2)
    for at, (tensor, *_) in enumerate(tensors):
        if of_first_layer(tensor) and tensor not in FACTORS and tensor != "output.weight":
            write(path, gguf_of(said, tensors[:at] + tensors[at + 1 :]), size)
            with pytest.raises(ModelError, match=tensor) as caught:
                load(of_gguf(path), "cpu", backend="blocks")
            assert is_sentence(str(caught.value))
    write(path, gguf_of(said, [*tensors, ("blk.0.surprise.weight", shape, F32, size // 32 * 32 + 32)]), size)
    with pytest.raises(ModelError, match=r"blk\.0\.surprise\.weight"):
        load(of_gguf(path), "cpu", backend="blocks")


@pytest.mark.parametrize("name", ["llama", "qwen3, norms", "qwen3 moe", "phi3", "gemma2"])
def test_a_configuration_that_does_not_fit_the_tensors_is_refused(name: str, tmp_path: Path) -> None:
    values, tensors, size = whole(name)
    kind, path = values["general.architecture"], tmp_path / "tiny.gguf"
    wrong = {
        "attention.head_count": (0, 1, 3, 64, 4096),
        "attention.head_count_kv": (1, 3, 4, 64),
        "attention.key_length": (1, 15, 64, 4096),
        "embedding_length": (1, 32, 128, 2**17),
        "feed_forward_length": (1, 32, 2**20),
        "block_count": (0, 4, 1000),
        "expert_count": (1, 2, 2**14),
        "expert_used_count": (0, 13),
    }
    for key, several in wrong.items():
        for value in set(several) - {there} if (there := values.get(f"{kind}.{key}")) else ():
            if name == "qwen3 moe" and key == "feed_forward_length":
                continue  # its experts have a width of their own
            write(path, gguf_of(list({**values, f"{kind}.{key}": value}.items()), tensors), size)
            with pytest.raises(ModelError) as caught:
                load(of_gguf(path), "cpu", backend="blocks")
            assert is_sentence(str(caught.value)), (key, value)


def test_tensors_lie_apart_and_within_the_file(tmp_path: Path) -> None:
    values, tensors, size = whole("llama")
    path, said = tmp_path / "tiny.gguf", list(values.items())
    name, shape, kind, at = tensors[3]
    for begin in (at + 1, at + 16, at + 32, at - 32, tensors[5][3], 2**40, 2**63):
        path.write_bytes(
            gguf_of(said, [*tensors[:3], (name, shape, kind, begin), *tensors[4:]]) + bytes(size)
        )
        with pytest.raises(BrokenFileError, match=rf"tensors? .*{name}.* Fetch or copy it again\."):
            read_head(path)


MODULES = [name for name in DAILY if FILES[name][0] not in GGUF_ARCHITECTURES]


@pytest.mark.parametrize("name", MODULES)
def test_families_that_run_through_modules(name: str, tmp_path: Path) -> None:
    values, tensors, _ = whole(name)
    path, count = tmp_path / "tiny.gguf", 0
    shapes = {key: tuple(one.shape) for key, one in gguf_module.stored(tiny_module(name)).items()}

    def convert(raw: bytes) -> None:
        write(path, raw, 10**9)
        head = read_head(path)
        family = gguf_families.FAMILIES[head.architecture]
        GgufModule(path, head, gguf_config(head), shapes, family).write(tmp_path / "out", silent)

    convert(gguf_of(list(values.items()), tensors))
    for tensor, raw in changed_heads(name):
        if tensor.startswith("altup_"):
            continue  # which may have more streams than are read
        with pytest.raises(ModelError) as caught:
            convert(raw)
        assert "tiny.gguf" in str(caught.value), tensor
        assert is_sentence(str(caught.value))
        count += 1
    assert count > 50


@pytest.mark.parametrize("name", ["llama", "qwen3 moe", "gpt-oss", "gemma4, experts"])
def test_safetensors_that_are_packed(name: str, tmp_path: Path) -> None:
    model = model_of(CONFIGS[name], num_hidden_layers=2)
    if name.startswith("gemma4"):
        model = model_of(CONFIGS[name])
    folder = tmp_path / "tiny"
    model.save_pretrained(folder)
    config, file = json.loads((folder / "config.json").read_text()), folder / "model.safetensors"
    sound = load_file(file)
    pack_safetensors(folder, config, 8, silent)
    names = {one.name.transformers for one in expected(config)}
    for key, tensor in sound.items():
        if ".layers.1." in key or (key == "lm_head.weight" and config["tie_word_embeddings"]):
            continue
        wrong = [np.concatenate([tensor] * 3), tensor[:1], tensor[..., :0], np.stack([tensor] * 2)]
        wrong += [tensor.swapaxes(-1, -2)] if tensor.ndim > 1 else []
        for one in wrong:
            if one.shape == tensor.shape:
                continue
            save_file({**sound, key: np.ascontiguousarray(one)}, file)
            with pytest.raises(BrokenFileError) as caught:
                pack_safetensors(folder, config, 8, silent)
            assert is_sentence(str(caught.value))
            assert key in str(caught.value) or key not in names, (key, one.shape)


def replaced(model: BlockModel, where: str, one: Any) -> BlockModel:
    if where in ("embedding", "head"):
        return replace(model, **{where: one})
    if where in model.vectors:
        return replace(model, vectors={**model.vectors, where: one})
    number, place = where.split(".")
    layers = [dict(layer) for layer in model.layers]
    layers[int(number)][place] = one
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_the_engine_takes_no_array_of_another_size(kind: Any) -> None:
    """The second line of defence, whatever read the weights."""
    model = blocks_of(tiny_model(kind), lambda floats: pack(floats, 8))
    for name, matrix in model.matrices():
        rows, columns = matrix.shape
        sizes = [(400 * rows, columns), (1, columns), (rows, columns + 32), (rows, 32)]
        wrong = [from_floats(np.zeros(size, np.float32)) for size in sizes if size != matrix.shape]
        wrong += [
            replace(matrix, data=matrix.data[:-64]),
            replace(matrix, lanes=1),
            replace(matrix, name="Q4_1"),
        ]
        if name in ("embedding", "head"):  # of how many tokens is not said
            wrong = [one for one in wrong if one.columns != columns or not one.is_whole]
        for one in wrong:
            with pytest.raises(ValueError, match=f"{name} "):
                CpuRunner(replaced(model, name, one), context_length=64)
    for name, vector in model.vectors.items():
        for shape in ((len(vector), 4096), (1, *vector.shape[1:]), (*vector.shape, 2), (0,)):
            with pytest.raises(ValueError, match=name):
                CpuRunner(replaced(model, name, np.zeros(shape, np.float32)), context_length=64)
    with pytest.raises(ValueError, match="surprise"):
        CpuRunner(replace(model, vectors={**model.vectors, "surprise": np.zeros(2)}), context_length=64)
    odd = {
        "partial_rotary_factor": 5.0,
        "num_key_value_heads": 3,
        "layer_types": ["full_attention"],
        "head_dim": 64,
    }
    for key, value in (*odd.items(), ("sliding_window", -5), ("num_attention_heads", 0)):
        config = {**model.config, key: value, "use_sliding_window": True, "rope_parameters": None}
        with pytest.raises(ValueError, match=r"\d"):
            CpuRunner(replace(model, config=config), context_length=64)


def test_no_row_beyond_a_matrix_is_read() -> None:
    matrix = pack(np.ones((5, 64), np.float32), 8)
    for row in (5, -1, 2**40):
        with pytest.raises(ValueError, match="has 5 rows"):
            matrix.floats(np.array([0, row]))


def test_a_damaged_file_of_the_cache_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / block_model.MODEL_FILE
    write_model(blocks_of(tiny_model("qwen3"), lambda floats: pack(floats, 8)), path)
    sound = path.read_bytes()
    length = int.from_bytes(sound[8:16], "little")
    head = json.loads(sound[16 : 16 + length])
    for group, entries in (("matrices", head["matrices"]), ("vectors", head["vectors"])):
        for name, entry in entries.items():
            for at in range(len(entry)):
                for value in (-1, 0, 1, 2**40, "I64", [2, 2]):
                    if value == entry[at] or (at == 0 and value == 0):
                        continue
                    changed = [*entry[:at], value, *entry[at + 1 :]]
                    said = json.dumps({**head, group: {**entries, name: changed}}).encode()
                    begin = -(-(16 + length) // 4096) * 4096
                    data = b"hierblok" + len(said).to_bytes(8, "little") + said
                    path.write_bytes(data + bytes(-len(data) % 4096) + sound[begin:])
                    # An offset within the file has the bytes of another matrix: nonsense, but in bounds
                    with pytest.raises(BrokenFileError) if at else suppress(BrokenFileError):
                        read_model(path)
