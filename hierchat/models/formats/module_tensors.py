"""The tensors of a module of transformers, without torch being imported before there is one."""

from __future__ import annotations

from typing import Any

FORMS = ("gate_up_proj", "up_proj", "down_proj")
"""Matrices of several experts, as transformers' interface for them calls them."""


def stored(module: Any) -> dict[str, Any]:
    """By name. An output that is the embedding is stored once."""
    found: dict[str, Any] = {}
    seen = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            found[name] = tensor
        seen.add(id(tensor))
    return found


def matrices_of(module: Any) -> tuple[set[str], set[str]]:
    """Names of matrices that rows are multiplied with or that are looked up, and of those that are only looked up."""
    from torch import nn

    names = {id(tensor): name for name, tensor in stored(module).items()}
    multiplied, looked_up = set[str](), set[str]()
    for part in module.modules():
        if type(part) is nn.Linear:
            multiplied.add(names[id(part.weight)])
        elif isinstance(part, nn.Embedding):
            looked_up.add(names[id(part.weight)])
        elif has_experts(part) and not part.is_transposed:
            multiplied |= {names[id(getattr(part, form))] for form in FORMS if hasattr(part, form)}
    return multiplied | looked_up, looked_up - multiplied


def has_experts(part: Any) -> bool:
    """Whether it holds experts as transformers' interface for them has it."""
    return hasattr(part, "has_post_expert_norm") and hasattr(part, "down_proj")
