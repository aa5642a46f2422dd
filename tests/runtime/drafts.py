"""A target that answers, and folders of draft models beside it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, MambaConfig, MambaForCausalLM

from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from hierchat.models.catalogue import Catalogue, Folder, ModelEntry
from hierchat.models.load.tokenizer_files import KNOWN_TOKENS_FILE
from hierchat.runtime.drafters import Levels
from hierchat.runtime.loading import LoadOptions, load_served_model
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.tiny_chat import CONTEXT, END, tokenizer

LAYERS = 12
"""Layers of the target: a draft with one of them is several times faster."""
KNOWN = np.array([END, *range(10, 200)])
"""What a distilled draft knows."""


@torch.no_grad()
def model(layers: int = 1, seed: int = 0, kind: Any = LlamaForCausalLM, **changed: Any) -> Any:
    """Only its first layer does anything: with any number of layers it says the same."""
    torch.manual_seed(seed)
    numbers = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }
    made = kind(kind.config_class(**{**numbers, **changed}))
    for layer in made.model.layers[1:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    made.model.layers = made.model.layers[:layers]
    made.config.num_hidden_layers = layers
    return made


def save(folder: Path, made: Any, tokens: Any = None) -> Path:
    made.save_pretrained(folder)
    (tokens or tokenizer()).save_pretrained(folder)
    return folder


def catalogue(folder: Path, *drafts: str, layers: int = LAYERS, **fields: Any) -> Catalogue:
    """The target, and drafts in folders beside it; `fields` of the drafts' entries."""
    save(folder / "target", model(layers))

    def entry(name: str, **more: Any) -> ModelEntry:
        return ModelEntry(**{"name": name, "source": {"folder": Folder(path=folder / name)}, **more})

    target = entry("target", drafts=drafts)
    entries = [target, *(entry(name, **{"draft_only": True, **fields}) for name in drafts)]
    return Catalogue(models={one.name: one for one in entries}, default="target")


def slot(models: Catalogue, store: Store | None = None) -> tuple[ServedModel, Levels]:
    """The target, which answers, and what stands below it."""
    served = load_served_model(
        models.entry("target"),
        LoadOptions("float32", catalogue=models, costs=store.learned if store else None),
    )
    settings = GenerationSettings(max_new_tokens=4, logit_bias={END: -100.0})
    assert list(served.engine.generate(GenerationRequest([5, 6, 7], settings)))[-1].finish == "length"
    assert served.levels
    return served, served.levels


# Drafts, and what may be wrong with them


def other_tokens(folder: Path) -> None:
    longer = copy.deepcopy(tokenizer())
    longer.add_tokens(["lighthouse"])
    save(folder, model(vocab_size=len(longer)), longer)


def cut_off(folder: Path) -> None:
    file = save(folder, model()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def distilled(folder: Path) -> Path:
    """Without its list of tokens."""
    return save(folder, model(vocab_size=len(KNOWN) + 1, eos_token_id=None).half())


def damaged_list(folder: Path) -> None:
    (distilled(folder) / KNOWN_TOKENS_FILE).write_bytes(b"damaged")


def list_of_another(folder: Path) -> None:
    np.save(distilled(folder) / KNOWN_TOKENS_FILE, KNOWN[:-1])


def no_list(folder: Path) -> None:
    distilled(folder)


def poisoned(folder: Path, weight: str, row: slice | int, value: float) -> None:
    file = save(folder, model()) / "model.safetensors"
    weights = load_file(file)
    weights[weight][row] = value
    save_file(weights, file, {"format": "pt"})


def nowhere_a_number(folder: Path) -> None:
    poisoned(folder, "model.layers.0.mlp.down_proj.weight", 3, float("inf"))


def recurrent(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 2}
    made = MambaForCausalLM(MambaConfig(vocab_size=len(tokenizer()), eos_token_id=END, **sizes))
    save(folder, made)
