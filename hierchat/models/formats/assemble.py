"""Make a model of blocks out of the tensors of its architecture, from GGUF files or safetensors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.architectures import families, mixers, model_config
from hierchat.models.formats import blocks
from hierchat.models.formats.block_model import BlockModel, mtp_config, require_sizes
from hierchat.models.formats.gguf_config import expected_of, require_shape, require_type
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_module import raw_rows
from hierchat.models.progress import (
    NONSENSE,
    BrokenFileError,
    Progress,
    Report,
    UnsupportedError,
)

Floats = NDArray[np.float32]
RowOrder = NDArray[np.int64]


TRANSFORMERS, GGUF = range(2)
"""Files that tensors come from: which of their two names counts."""


def row_orders(config: Mapping[str, Any], layer: int, files: int) -> dict[str, RowOrder]:
    """Return the rows of a file's tensor that make a matrix, if not all in order: parts of a joint tensor, and queries
    and keys from interleaved into half-split rotary order."""
    architecture, (heads, _, size) = families.architecture_of(config), model_config.heads_of(config)
    matrices, sizes = model_config.matrices_of(config, layer), model_config.matrix_sizes(config, layer)
    found: dict[str, RowOrder] = {}
    for name in matrices.values():
        # Hybrids may have one tensor for two matrices in files of one kind alone
        same = itemgetter(files) if architecture.mixers else tuple
        together = [other for other, its in matrices.items() if same(its) == same(name)]
        if len(together) == 1:
            continue
        if together == ["q", "q_gate"]:
            found["q"], found["q_gate"] = _grouped(heads, size, size)
        elif together in (["mix", "z"], ["beta", "alpha"]):
            found |= _key_by_key(mixers.mixer_of(config, mixers.DELTA_NET), together)
        else:
            groups = sizes[together[0]].experts or 1
            parts = _grouped(groups, *(sizes[other].rows for other in together))
            found |= dict(zip(together, parts, strict=True))
    interleaved = (architecture.interleaved_rope, architecture.gguf_interleaved_rope)[files]
    for place in ("q", "k") if interleaved else ():
        if place in matrices:
            one, rotated = np.arange(size), model_config.rotary_dims(config)
            one[:rotated] = one[:rotated].reshape(-1, 2).T.reshape(-1)
            turned = (np.arange(sizes[place].rows // size)[:, None] * size + one).reshape(-1)
            found[place] = found[place][turned] if place in found else turned
    return found


def _grouped(groups: int, *sizes: int) -> list[RowOrder]:
    begins = np.arange(groups)[:, None] * sum(sizes)
    ends = np.cumsum(sizes)
    return [(begins + np.arange(end - size, end)).reshape(-1) for size, end in zip(sizes, ends, strict=True)]


def _key_by_key(mixer: mixers.Mixer, together: list[str]) -> dict[str, RowOrder]:
    """Return the rows of what Qwen3-Next projects at once, with the parts of each key together."""
    each = mixer.values // mixer.keys
    if together == ["beta", "alpha"]:
        return dict(zip(together, _grouped(mixer.keys, each, each), strict=True))
    value = each * mixer.value_size
    *mixed, z = _grouped(mixer.keys, mixer.key_size, mixer.key_size, value, value)
    return {"mix": np.concatenate(mixed), "z": z}


_NONE = np.zeros(0, np.float32)
ReadTensor = Callable[[families.Name], Floats]
"""A tensor by its name, as float32."""


ReadMatrix = Callable[[families.Name, RowOrder | None], blocks.Blocks]
"""A tensor by its name, in blocks, and which of its rows where not all as they are."""


def assemble(
    config: dict[str, Any],
    tensor: ReadTensor,
    matrix: ReadMatrix,
    files: int,
    *,
    tied: bool,
    step: Callable[[int, int], None] = lambda n, of: None,
) -> BlockModel:
    """Make a model of the architecture's tensors; `config` is its config.json. `files`: TRANSFORMERS or GGUF;
    `tied`: the embedding is the head; `step` gets how many layers are done."""
    model_config.require_consistent(config)
    architecture = families.architecture_of(config)
    layers = range(config["num_hidden_layers"])
    read: list[dict[str, blocks.Blocks]] = []
    for layer in layers:
        step(layer, len(layers))
        orders = row_orders(config, layer, files)
        matrices = model_config.matrices_of(config, layer).items()
        read.append({place: matrix(name.of(layer), orders.get(place)) for place, name in matrices})

    def stacked(name: families.Name, kind: str = "weight") -> Floats:
        return np.stack([tensor(name.of(layer, kind)) for layer in layers])

    def norms(place: str, name: families.Name) -> Floats:
        """Stack a norm of all layers; zeros fill up those that are shorter than others, or missing."""
        has = [place in model_config.norms_of(config, layer) for layer in layers]
        found = [tensor(name.of(layer)) if there else _NONE for layer, there in zip(layers, has, strict=True)]
        most = max(len(one) for one in found)
        return np.stack([np.pad(one, (0, most - len(one))) for one in found])

    offset = _norm_offset(architecture, files)
    found = {place: norms(place, name) for place, name in architecture.norms.items()}
    vectors = {place: norm + offset for place, norm in found.items() if norm.size}
    vectors["last_norm"] = tensor(architecture.last_norm) + offset
    if architecture.mixers:
        vectors |= _of_mixers(config, tensor, files)
    biases = {
        place: stacked(architecture.matrices[place], "bias") for place in architecture.biases_of(config)
    }
    orders = row_orders(config, 0, files)
    biases |= {place: biases[place][:, order] for place, order in orders.items() if place in biases}
    if heads := [biases.pop(place) for place in "qkv" if place in biases]:
        vectors["biases"] = np.concatenate(heads, axis=1).reshape(
            len(layers), -1, model_config.heads_of(config)[2]
        )
    vectors |= {f"{place}_biases": found for place, found in biases.items()}
    others = {"sinks": architecture.sinks, "scales": architecture.scales}
    vectors |= {key: stacked(name) for key, name in others.items() if name}
    if model_config.has_mlp_beside_experts(config):
        root = np.float32(config["hidden_size"] ** -0.5)
        vectors["router_norms"] = stacked(families.ROUTER_NORMS, "scale") * root
        vectors["expert_scales"] = stacked(families.EXPERT_SCALES, "scale")
    embedding = matrix(architecture.embedding, None)
    model = BlockModel(
        config, embedding, embedding if tied else matrix(families.HEAD, None), tuple(read), vectors
    )
    if model_config.layer_input_size(config):
        vectors["layer_norm"] = tensor(families.LAYER_PROJECTION_NORM) + offset
        inputs, projection = matrix(families.LAYER_EMBEDDING, None), matrix(families.LAYER_PROJECTION, None)
        model = replace(model, layer_embedding=inputs, layer_projection=projection)
    require_sizes(model)
    return model


def _norm_offset(architecture: families.Architecture, files: int) -> np.float32:
    """Return what is added to all norms; in GGUF files it is added already."""
    return np.float32(architecture.norm_offset if files == TRANSFORMERS else 0.0)


def _require_rows(
    name: families.Name, found: tuple[int, ...], shapes: Mapping[families.Name, tuple[int, ...]]
) -> None:
    """Check the shape of a tensor, experts one behind the other. Raises BrokenFileError, naming it."""
    right = shapes[name]
    if len(right) > len(found):
        right = (right[0] * right[1], *right[2:])
    if [size for size in found if size != 1] != [size for size in right if size != 1]:
        raise _Misfit(name, f": it is {list(found)}, not {list(right)}")


class _Misfit(BrokenFileError):
    def __init__(self, name: families.Name, why: str = "") -> None:
        super().__init__(
            f"The tensor {name.transformers} does not fit its configuration{why}. Fetch or copy the model again."
        )


def with_mtp(model: BlockModel, tensor: ReadTensor, matrix: ReadMatrix, files: int) -> BlockModel:
    """Add the layer for multi-token prediction, whose parts `tensor` and `matrix` read as if it were layer 0.
    If one is missing or broken, the model goes without; its configuration has the reason as "mtp_lack"."""
    config, architecture = mtp_config(model.config), families.architecture_of(model.config)

    def shared(name: families.Name, order: RowOrder | None) -> blocks.Blocks:
        return model.embedding if name == architecture.embedding else matrix(name, order)

    offset = _norm_offset(architecture, files)
    try:
        layer = assemble(config, tensor, shared, files, tied=True)
        norms = {name: tensor(beside_layer(name)) + offset for name in ("enorm", "hnorm")}
        found = model.with_mtp(layer, matrix(beside_layer("eh_proj"), None), norms)
        require_sizes(found)
    except (BrokenFileError, UnsupportedError, ValueError) as error:
        return replace(model, config={**model.config, "mtp_lack": str(error)})
    return found


WITH_MTP = frozenset(["qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"])
"""Kinds whose files have a layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437), with full attention."""
_MTP = re.compile(r"(?:model\.)?(?:language_model\.)?mtp\.")
_MTP_PARTS = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "model.norm",
}
"""Parts around the layer by their names in safetensors, and by ours."""


def mtp_name(name: str) -> str | None:
    """Return the name as layer 0 of a tensor of the layer for multi-token prediction in safetensors, else None."""
    if not (found := _MTP.match(name)):
        return None
    stem, _, kind = name[found.end() :].rpartition(".")
    return f"{_MTP_PARTS[stem]}.{kind}" if stem in _MTP_PARTS else f"model.{stem}.{kind}"


def mtp_shapes(config: Mapping[str, Any], *, gguf: bool) -> dict[families.Name, model_config.Expected]:
    """Return the tensors of the layer for multi-token prediction by their names as layer 0."""
    hidden, expected = config["hidden_size"], model_config.expected(mtp_config(config), gguf=gguf)
    found = {one.name: one for one in expected}
    sizes = {"enorm": (hidden,), "hnorm": (hidden,), "eh_proj": (hidden, 2 * hidden)}
    names = {name: beside_layer(name) for name in sizes}
    around = {
        names[name]: model_config.Expected(names[name], shape, matrix=len(shape) > 1)
        for name, shape in sizes.items()
    }
    return found | around


def beside_layer(name: str) -> families.Name:
    """Return the name of a part of the layer for multi-token prediction that other layers lack."""
    return families.Name(f"{name}.weight", f"nextn.{name}.weight")


def _of_mixers(config: Mapping[str, Any], tensor: ReadTensor, files: int) -> dict[str, Floats]:
    layers, found = range(config["num_hidden_layers"]), dict[str, Floats]()
    for layer in layers:
        names = model_config.vectors_of(config, layer)
        for place, shape in mixers.vector_sizes(config, layer).items():
            one = tensor(names[place].of(layer, ""))
            if place == "decays" and files == TRANSFORMERS:
                one = -np.exp(one.astype(np.float64)).astype(np.float32)
            if place not in found:
                found[place] = np.zeros((len(layers), *shape), np.float32)
            found[place][layer] = one.reshape(shape)
    return found


# Safetensors of transformers, whatever pieces tensors are stored in


def whole(name: families.Name, experts: int, read: Callable[[str], Floats]) -> Floats:
    """Return a tensor by its name in transformers; of experts joined, float32 [experts * rows, columns]."""
    said = name.transformers
    if "{}" in said:
        return np.concatenate([read(said.format(expert)) for expert in range(experts)])
    stem, kind = said.rsplit(".", 1)
    if stem.endswith((".sinks", ".layer_scalar")) or kind == "scale":
        return read(stem)
    if ".experts." in said and ".mlp." not in said:
        floats = read(stem)
        return floats.reshape(-1, floats.shape[2])
    if not fused(name):
        found = read(said)
        return found.reshape(-1, found.shape[-1]) if found.ndim > 2 else found
    floats = read(f"{stem}_bias") if kind == "bias" else read(stem).swapaxes(1, 2)
    floats = np.ascontiguousarray(floats[:, part_of(name)])
    return floats if kind == "bias" else floats.reshape(-1, floats.shape[2])


def fused(name: families.Name) -> bool:
    """Tell whether a tensor is stored for all experts in one."""
    return ".mlp.experts." in name.transformers and "{}" not in name.transformers


def part_of(name: families.Name) -> slice:
    """Return the rows of each expert that are this tensor's: gate and up stand in turn."""
    if families.FUSED_EXPERTS["down"].gguf in name.gguf:
        return slice(None)
    return slice(0 if families.FUSED_EXPERTS["gate"].gguf in name.gguf else 1, None, 2)


_OF_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
"""A matrix of one expert, which some files have in one tensor with those of all others."""
_PIECE = 8192
"""Rows of a large matrix that are packed at a time."""


def pack_safetensors(folder: Path, config: dict[str, Any], bits: int, report: Report) -> BlockModel:
    """Round every matrix to blocks of `bits`, embedding and head to 8; routers become floats, MXFP4 experts stay.
    Raises BrokenFileError, naming a missing tensor."""
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    stored = {name: file for file in files for name in file.keys()}  # noqa: SIM118
    # Beside pictures, tensors of texts have names of their own
    places = {
        re.sub(rf"^(?:{re.escape(model_config.PREFIX)}|backbone\.)", "model.", name): (file, name)
        for name, file in stored.items()
    }

    message = f"{folder.name} to {bits}-bit blocks, once"
    architecture = families.architecture_of(config)
    if mixers.DELTA_NET in architecture.mixers:  # of each key together, as transformers has them
        config = {**config, "value_heads_grouped": True}
    experts = model_config.experts_of(config)[0]
    kept = {"router", "dense_scale"}  # as floats: few numbers, which decide much
    floats = {
        name.of(layer)
        for layer in range(config["num_hidden_layers"])
        for place, name in model_config.matrices_of(config, layer).items()
        if place in kept
    }

    def placed(name: str) -> tuple[Any, str]:
        if name not in places:
            raise BrokenFileError(f"{folder} lacks the tensor {name}.")
        return places[name]

    def raw(name: str) -> Any:
        found = None if name in places else _OF_EXPERT.fullmatch(name)
        if found and f"{found[1]}.{'down_proj' if found[3] == 'down' else 'gate_up_proj'}" in places:
            file, joined = placed(f"{found[1]}.{'down_proj' if found[3] == 'down' else 'gate_up_proj'}")
            whole_one = file.get_slice(joined)[int(found[2])]
            return whole_one if found[3] == "down" else whole_one.chunk(2)[found[3] == "up"]
        file, stored_name = placed(name)
        return file.get_tensor(stored_name)

    def read(name: str) -> Floats:
        return np.asarray(raw(name).float().numpy(), np.float32)

    shapes = {one.name: one.shape for one in model_config.expected(config, gguf=False)}

    def tensor(name: families.Name) -> Floats:
        try:
            found = whole(name, experts, read)
        except NONSENSE as error:
            raise _Misfit(name) from error
        _require_rows(name, found.shape, shapes)
        return found

    def in_blocks(name: families.Name, order: RowOrder | None) -> blocks.Blocks:
        stem = name.transformers.removesuffix(".weight")
        if fused(name) and f"{stem}_blocks" in places:
            codes, scales = (raw(f"{stem}_{kind}").numpy() for kind in ("blocks", "scales"))
            codes, scales = codes[:, part_of(name)], scales[:, part_of(name)]
            _require_rows(name, (*codes.shape[:-2], codes.shape[-2] * codes.shape[-1] * 2), shapes)
            if codes.shape[:-1] != scales.shape or codes.dtype != np.uint8 or scales.dtype != np.uint8:
                raise _Misfit(name)
            return blocks.from_file("MXFP4", blocks.mx_blocks(codes, scales))
        if name == families.LAYER_EMBEDDING:
            file, own = placed(name.transformers)
            _require_rows(name, tuple(file.get_slice(own).get_shape()), shapes)
            return _packed_in_pieces(file, own)
        weights = tensor(name) if order is None else tensor(name)[order]
        if name in floats:
            return blocks.from_floats(weights)
        return blocks.pack(weights, 8 if name in (architecture.embedding, families.HEAD) else bits)

    model = assemble(
        config,
        tensor,
        in_blocks,
        TRANSFORMERS,
        tied=config.get("tie_word_embeddings", families.HEAD.transformers not in places),
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )
    own = {known: at for name, at in places.items() if (known := mtp_name(name))}
    if not own or config["model_type"] not in WITH_MTP:
        return model
    places = own
    wanted = mtp_shapes(config, gguf=False)
    shapes = {name: one.shape for name, one in wanted.items()}
    return with_mtp(model, tensor, in_blocks, TRANSFORMERS)


def _packed_in_pieces(file: Any, name: str) -> blocks.Blocks:
    stored = file.get_slice(name)
    raw, kind = list[NDArray[np.uint8]](), ""
    for begin in range(0, stored.get_shape()[0], _PIECE):
        kind, bytes_ = blocks.packed(
            np.asarray(stored[begin : begin + _PIECE].float().numpy(), np.float32), 8
        )
        raw.append(bytes_)
    return blocks.from_file(kind, np.concatenate(raw))


_UNTURNED = 1e20


def read_gguf(path: Path, config: dict[str, Any], report: Report) -> BlockModel:
    """Read a GGUF file whose tensors gguf_config.py has checked. `config`: in transformers' terms."""
    head = read_head(path)
    tensors = {tensor.name: tensor for tensor in head.tensors}
    config = mixers.completed(config)
    architecture = families.architecture_of(config)
    if architecture.gguf_grouped_heads:
        config["value_heads_grouped"] = True
    wanted = expected_of(config, head)

    def matrix(name: families.Name, order: RowOrder | None) -> blocks.Blocks:
        tensor = tensors[name.gguf]
        return blocks.from_file(tensor.type, raw_rows(path, tensor), order)

    def vector(name: str) -> Floats:
        tensor = tensors[name]
        return blocks.floats_of(tensor.type, raw_rows(path, tensor)).reshape(wanted[name].shape)

    message = f"{path.name}, once"
    tied = families.HEAD.gguf not in tensors
    proportional = model_config.rope_type(model_config.rope_scaling(config)) == "proportional"
    # What is not rotated is divided by a number beyond all others.
    if proportional and families.ROPE_FACTORS in tensors:
        share = float((vector(families.ROPE_FACTORS) < _UNTURNED).mean())
        config["rope_parameters"][model_config.FULL]["partial_rotary_factor"] = share
    model = assemble(
        config | {"tie_word_embeddings": tied},
        lambda name: vector(name.gguf),
        matrix,
        GGUF,
        tied=tied,
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )
    guessing = f"blk.{len(model.layers)}."
    said_so = head.of_architecture("nextn_predict_layers") or any(
        name.startswith(guessing) for name in tensors
    )
    if said_so and config["model_type"] in WITH_MTP:
        parts = mtp_shapes(config, gguf=True)

        def guessed(name: families.Name) -> families.Name:
            """Return the name that a part of the layer for multi-token prediction has in the file, if it fits."""
            own = guessing + name.gguf.removeprefix("blk.0.")
            if name == architecture.last_norm:
                own = f"{guessing}nextn.shared_head_norm.weight"
            if own not in tensors:
                raise BrokenFileError(f"the file lacks {own}")
            require_shape(tensors[own], parts[name].shape, path.name)
            require_type(tensors[own], path.name, matrix=parts[name].matrix)
            wanted[own] = parts[name]
            return families.Name("", own)

        model = with_mtp(
            model,
            lambda name: vector(guessed(name).gguf),
            lambda name, order: matrix(guessed(name), order),
            GGUF,
        )
    if families.ROPE_FACTORS not in tensors or proportional:
        return model
    return replace(model, vectors={**model.vectors, "rope_factors": vector(families.ROPE_FACTORS)})
