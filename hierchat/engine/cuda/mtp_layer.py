"""Load the layer for multi-token prediction (MTP) of a transformers model, as a causal model of one layer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from hierchat.engine.cuda.packed_modules import in_packed_blocks
from hierchat.models.formats.assemble import WITH_MTP, mtp_name
from hierchat.models.formats.block_model import mtp_config, require_equal
from hierchat.models.formats.gguf_families import IN_BLOCKS
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.formats.gguf_module import GgufModule, matrices_of
from hierchat.models.load.load_model import FileModule
from hierchat.models.progress import silent

_INPUTS = "model.embed_tokens."
_AROUND = {"shared_head_norm": "output_norm", "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm"}
"""Parts around the layer by their names in GGUF files, and by those in a file of one layer."""


class JoinedStates(nn.Module):
    """Input of an MTP layer, in place of an embedding: each token's embedding, joined with the state before it."""

    states: torch.Tensor
    """[rows, hidden] float32, one for each token; set before every forward."""

    def __init__(self, embedding: nn.Module, norm: nn.Module, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding, self.enorm, self.hnorm = embedding, deepcopy(norm), deepcopy(norm)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Join tokens [1, rows]: [1, rows, hidden]."""
        embedded = self.embedding(tokens)
        states = self.states[None].to(embedded.dtype)
        joined: torch.Tensor = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(states)], dim=-1))
        return joined


def mtp_layer(target: Any, source: Path) -> Any | None:
    """Return the MTP layer in a model's GGUF file or folder of safetensors; None if there is none. It shares the
    embedding and output layer of `target`, and its device. Raises ModelError, or ValueError for misshapen tensors."""
    if target.config.model_type not in WITH_MTP:
        return None
    return _from_gguf(target, source) if source.is_file() else _from_folder(target, source)


def _unfilled(target: Any) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return a layer whose own tensors have no memory yet, and the shapes of these tensors by name."""
    config, dtype = deepcopy(target.config), target.dtype
    config.update(mtp_config({}))
    with no_init_weights(), torch.device("meta"):
        layer = AutoModelForCausalLM.from_config(config, dtype=dtype)
        norm = layer.base_model.norm
        joined = JoinedStates(target.get_input_embeddings(), norm, config.hidden_size, dtype)
    layer.set_input_embeddings(joined)
    layer.set_output_embeddings(target.get_output_embeddings())
    layer.base_model.rotary_emb = target.base_model.rotary_emb
    tensors = layer.eval().requires_grad_(False).state_dict()
    return layer, {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor.is_meta}


def _from_gguf(target: Any, gguf: Path) -> Any | None:
    head, number = read_head(gguf), target.config.num_hidden_layers
    block = f"blk.{number}."
    own = [tensor for tensor in head.tensors if tensor.name.startswith(block)]
    if not own and not head.of_architecture("nextn_predict_layers"):
        return None
    around = {f"{block}nextn.{name}.weight": f"{ours}.weight" for name, ours in _AROUND.items()}
    head = replace(head, tensors=tuple(replace(one, name=around.get(one.name, one.name)) for one in own))
    layer, shapes = _unfilled(target)
    names = {name.removeprefix(_INPUTS).replace(".layers.0.", f".layers.{number}."): name for name in shapes}
    wanted, packed = {said: shapes[name] for said, name in names.items()}, matrices_of(layer)
    made = GgufModule(gguf, head, target.config.to_dict(), wanted, IN_BLOCKS[head.architecture])
    matrices, vectors = made.in_file({said for said, name in names.items() if name in packed}, silent)
    tensors = {names[said]: torch.tensor(one).to(layer.dtype) for said, one in vectors.items()}
    layer.load_state_dict(tensors, strict=False, assign=True)
    mapped = {names[said]: matrix for said, matrix in matrices.items()}
    return in_packed_blocks(FileModule(layer, mapped, str(target.device)))


def _from_folder(target: Any, folder: Path) -> Any | None:
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    places = {ours: (file, name) for file in files for name in file.keys() if (ours := mtp_name(name))}  # noqa: SIM118
    if not places:
        return None
    layer, shapes = _unfilled(target)
    names = {name.removeprefix(_INPUTS): name for name in shapes}
    found = {ours: file.get_tensor(name) for ours, (file, name) in places.items()}
    wanted = {ours: shapes[name] for ours, name in names.items()}
    require_equal(wanted, {ours: tuple(tensor.shape) for ours, tensor in found.items()})
    tensors = {names[ours]: tensor.to(target.device, target.dtype) for ours, tensor in found.items()}
    layer.load_state_dict(tensors, strict=False, assign=True)
    return layer
