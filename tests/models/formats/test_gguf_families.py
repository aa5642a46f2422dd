"""GGUF files of families that neither our kernels compute nor transformers' own reader reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hierchat.models.architectures.families import GGUF_ARCHITECTURES
from hierchat.models.catalogue import Gguf, ModelEntry, ModelSource, Size
from hierchat.models.formats.blocks import floats_of
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_families import FAMILIES as READ
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_module import GgufModule, matrices_of, stored
from hierchat.models.load.add import of_head
from hierchat.models.load.check import (
    by_engine,
    expected_step,
    remote_head,
    require_worth_fetching,
)
from hierchat.models.load.load_model import LoadedModel, load
from hierchat.models.progress import BrokenFileError, UnsupportedError, silent
from tests.gguf_files import changes
from tests.gguf_files.models import DAILY, FAMILIES, VOCABULARY, tiny_module
from tests.gguf_files.writer import write_family
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.tiny import random_tokens
from tests.testing.tiny_files import of_gguf, tiny_tokenizer

TEXT = random_tokens(40, seed=1, vocabulary=VOCABULARY)
FIRST = next(iter(FAMILIES))
PACKED = [
    pytest.param(name, number % 2 == 1, marks=() if name in DAILY else pytest.mark.large)
    for number, name in enumerate(FAMILIES)
    if FAMILIES[name][0] not in GGUF_ARCHITECTURES
]
"""Families that transformers' modules compute: every other one in eight bits, else in float32."""
ASIDE = {"initializer_range", "num_nextn_predict_layers"}
ASIDE |= {"_name_or_path", "architectures", "dtype", "transformers_version"}
"""Keys of a configuration that say nothing of how it computes."""
TOKENIZER = tiny_tokenizer(("ab",))


def loaded_from(path: Path) -> LoadedModel:
    return load(of_gguf(path), "cpu", backend="float32")


def logits(model: Any) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([TEXT]), use_cache=False).logits[0].float().numpy()


def config_of(model: Any) -> dict[str, Any]:
    """Read what it says of how it computes."""
    said = model.config.to_dict()
    rotations = said.get("rope_parameters") or {}
    rotations.pop("mrope_section", None)  # of texts all axes are the same
    if rotations.get("partial_rotary_factor") == 1.0:
        del rotations["partial_rotary_factor"]
    return {key: value for key, value in said.items() if key not in ASIDE}


def assert_same(found: Any, model: Any) -> None:
    """Weight by weight and logit by logit."""
    mine, theirs = found.state_dict(), model.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(mine[name], tensor), name
    said, given = config_of(found), config_of(model)
    assert {key: said[key] for key in given} == given
    copied = AutoModelForCausalLM.from_config(found.config)  # bits depend on where in memory weights begin
    copied.load_state_dict(mine)
    assert np.array_equal(logits(copied.eval()), logits(model))


@pytest.mark.parametrize(("name", "packed"), PACKED)
def test_a_file_is_the_model_that_it_was_made_of(name: str, packed: bool, tmp_path: Path) -> None:
    model = tiny_module(name)
    path = write_family(name, model, tmp_path / "tiny.gguf", TOKENIZER, packed=packed)
    head = read_head(path)
    assert {tensor.type for tensor in head.tensors} == {"F32", *["Q8_0"] * packed}
    told = of_head(path.name, head)
    size, with_experts = told.fields["size"], any("_exps." in tensor.name for tensor in head.tensors)
    step = "plain" if with_experts else "slots"
    assert (told.step, told.fields["kind"] in READ[FAMILIES[name][0]].kinds) == (step, True)
    assert ("active" in size) == (with_experts or "looked_up" in size)
    named = of_gguf(path).model_copy(update={"kind": told.fields["kind"], "size": Size(**size)})
    assert {expected_step(one, "cpu") for one in (named, of_gguf(path))} == {step}
    found = loaded_from(path)
    assert_same(found.model, model)
    text = "It is there, 12345."
    ids = found.tokenizer(text)["input_ids"]
    assert found.tokenizer.decode(ids) == text
    assert FAMILIES[name][0] == "gemma3n" or ids == TOKENIZER(text)["input_ids"]
    assert found.end_ids == {2}
    assert not by_engine(of_gguf(path), "cpu", None)


@pytest.mark.parametrize("name", ["qwen35", "qwen3next", "granitehybrid"])
def test_matrices_that_stay_in_the_file_have_their_rows_and_columns_in_order(
    name: str, tmp_path: Path
) -> None:
    """Columns that are moved, rows of two tensors in turn, and rows of two tensors one after the other."""
    module = tiny_module(name)
    path = write_family(name, module, tmp_path / "tiny.gguf", TOKENIZER, packed=True)
    shapes = {said: tuple(tensor.shape) for said, tensor in stored(module).items()}
    made = GgufModule(path, read_head(path), gguf_config(read_head(path)), shapes, READ[FAMILIES[name][0]])
    matrices, vectors = made.in_file(matrices_of(module), silent)
    tensors = module.state_dict()
    for said, matrix in matrices.items():
        if len(shapes[said]) == 3:  # experts' stacks, in tests/engine/test_packed_experts.py
            continue
        rows = np.concatenate([floats_of(kind, raw)[order] for kind, raw, order in matrix.pieces])
        found = rows if matrix.columns is None else rows[:, matrix.columns]
        assert np.array_equal(found, tensors[said].numpy()), said
    assert all(np.array_equal(vector, tensors[said].numpy()) for said, vector in vectors.items())
    assert matrices.keys() | vectors.keys() == shapes.keys()
    counts = {len(matrix.pieces) for said, matrix in matrices.items() if len(shapes[said]) == 2}
    assert counts == {"qwen35": {1}, "qwen3next": {1, 4}, "granitehybrid": {1, 2}}[name]


def test_all_families_are_tried() -> None:
    assert {architecture for architecture, *_ in FAMILIES.values()} == set(READ)


def test_what_older_converters_left_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-Next's projections; and gate and up of experts, which newer ones may join."""
    gates: dict[str, changes.Floats] = {}

    def unsplit(config: Any, name: str, tensor: changes.Floats) -> changes.Named:
        layer = name.split(".")[2] if ".layers." in name else ""
        if name.endswith("experts.gate_proj.weight"):
            gates[layer] = tensor
        elif name.endswith("experts.up_proj.weight"):
            yield f"=blk.{layer}.ffn_gate_up_exps.weight", np.concatenate([gates[layer], tensor], axis=1)
        elif "in_proj_qkvz" in name:
            yield name, tensor
        else:
            yield from changes.of_qwen3next(config, name, tensor)

    monkeypatch.setitem(changes.CHANGES, "qwen3next", unsplit)
    model = tiny_module("qwen3next")
    path = write_family("qwen3next", model, tmp_path / "tiny.gguf", TOKENIZER)
    joined = {"blk.0.ssm_in.weight", "blk.0.ffn_gate_up_exps.weight"}
    assert joined <= {one.name for one in read_head(path).tensors}
    assert_same(loaded_from(path).model, model)


@pytest.fixture
def hub(hub_of: Callable[[dict[str, bytes]], FakeHub], tmp_path: Path) -> FakeHub:
    """With two files: one that runs, and one whose way to split text nobody knows."""
    good = write_family("cohere2", tiny_module("cohere2"), tmp_path / "good.gguf", TOKENIZER).read_bytes()
    key = b"tokenizer.ggml.pre"
    at = good.index(key) + len(key) + 12  # behind the kind of the value and its length
    return hub_of({"good.gguf": good, "odd.gguf": good[:at] + b"oddity" + good[at + 6 :]})


def test_what_the_hub_has_is_judged_before_it_is_fetched(hub: FakeHub, cache: Path) -> None:
    good, odd = (Gguf(repo=REPO, file=f"{name}.gguf") for name in ("good", "odd"))
    assert of_head("good.gguf", remote_head(good)).step == "slots"
    require_worth_fetching(ModelEntry(name="tiny", source=ModelSource(gguf=good)), "cpu")
    with pytest.raises(UnsupportedError, match=r"its way to split text is not known here \(oddityd-r\)"):
        require_worth_fetching(ModelEntry(name="tiny", source=ModelSource(gguf=odd)), "cpu")
    assert not list(cache.rglob("*.gguf"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_family(FIRST, tiny_module(FIRST), tmp_path / "tiny.gguf", TOKENIZER)
    layers = gguf_config(read_head(path))[
        "num_hidden_layers"
    ]  # without the layer that guesses further tokens
    assert f"blk.{layers}.nextn.enorm.weight" in {tensor.name for tensor in read_head(path).tensors}
    whole = path.read_bytes()
    lacking = whole.replace(b"blk.1.ffn_down.weight", b"blk.9.ffn_down.weight")
    foreign = whole.replace(b"blk.4.", b"other.").replace(b"nextn.enorm", b"of_the_moon")
    for number, (raw, error, said) in enumerate((
        (whole[: len(whole) // 2], BrokenFileError, r"0\.gguf is no whole GGUF file"),
        (lacking, BrokenFileError, r"lacks the tensor blk\.1\.ffn_down\.weight"),
        (foreign, UnsupportedError, "which (qwen3_5_text|such a model) does not have"),
    )):  # fmt: skip
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(raw)
        with pytest.raises(error, match=said):
            loaded_from(file)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ssm.state_size": None}, "do not say what model it is"),
        ({"embedding_length": None}, "do not say what model it is"),
        ({"ssm.group_count": 4}, "do not say what model it is"),
        ({"feed_forward_length": 64}, "does not fit what it says of the model"),
    ],
)
def test_heads_that_say_too_little_or_something_else(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_family(FIRST, tiny_module(FIRST), tmp_path / "tiny.gguf", TOKENIZER, **changed)
    for backend in (None, "float32"):
        with pytest.raises(BrokenFileError, match=said):
            load(of_gguf(path), "cpu", backend=backend)
