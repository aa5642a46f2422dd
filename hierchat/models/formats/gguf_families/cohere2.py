"""Cohere 2, such as Command R7B: attention beside what feeds forward, windows but in every fourth layer."""

from __future__ import annotations

from typing import Any

from hierchat.models.formats.gguf_families.common import FULL, SLIDING, common, layers_of, needed
from hierchat.models.formats.gguf_families.family import Family
from hierchat.models.formats.gguf_head import Head

_EVERY = 4


def _config(head: Head) -> dict[str, Any]:
    every = head.of_architecture("attention.sliding_window_pattern") or _EVERY
    return common(
        head,
        model_type="cohere2",
        sliding_window=needed(head, "attention.sliding_window"),
        layer_types=[SLIDING if (layer + 1) % every else FULL for layer in range(layers_of(head))],
        layer_norm_eps=needed(head, "attention.layer_norm_epsilon"),
        logit_scale=needed(head, "logit_scale"),
    )


FAMILIES = (Family("cohere2", ("cohere2",), _config, lambda config: {}),)
