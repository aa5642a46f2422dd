"""What a file of this folder says of its architecture: facts that the loader and the CPU engine need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hierchat.models.architectures.names import MATRICES, Name

CLAMPED = "clamped_silu"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", CLAMPED)
"""What transformers calls the activations of the gate that the CPU engine computes; gpt-oss' has no name there."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of MATRICES, a gated activation, RMSNorm and rotary positions, and what of it others do otherwise.

    `model_type` is transformers' name, `gguf` that of GGUF files. `norms`: the norms of a layer, by the names of a
    BlockModel's vectors; `norm_offset` is added to those of safetensors, and stands in those of GGUF files already.
    `matrices`: those of a layer by their names in a BlockModel; several that have one name are its rows, one behind the
    other. With a router among them a layer has several experts, whose width stands in config.json under `inner`.
    `beside`: matrices in place of those where config.json says that layers have experts beside what others have alone;
    their width is the moe_intermediate_size. `biases`: matrices that have them; `optional_biases`: unless config.json
    says otherwise. `sinks`: what each head looks at beside the text. `scales`: what multiplies the residual stream
    behind each layer. `value_norm`: values are normalised, without weights. `gguf_pairs_neighbours`: for rotary
    positions, GGUF files pair neighbours within a head, where the engine pairs its halves; `pairs_neighbours`: so do
    safetensors. `scaled_embedding`: what a token begins with is its embedding times the root of its length.

    The rest holds where config.json says nothing: `activation`, one of ACTIVATIONS; `window`: a `sliding_window`
    counts; `full_every`: of so many layers, the last sees beyond the window; `rope_base` of rotary positions, and
    `local_rope_base` of those in layers with a window, where it is another; `rotary_part`: of a head that they turn;
    `unrotated_every`: of so many layers, the last has none; `full_unrotated`: layers without a window have none where
    others have a window; `query_scale`: what queries are multiplied by; `full_head_dim`: numbers per head in layers
    without a window, where others have one.

    layers.py says which of all that a layer has.
    """

    model_type: str
    gguf: str
    norms: Mapping[str, Name]
    matrices: Mapping[str, Name] = field(default_factory=lambda: MATRICES)
    inner: str = "intermediate_size"
    beside: Mapping[str, Name] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    optional_biases: bool = False
    sinks: Name | None = None
    scales: Name | None = None
    value_norm: bool = False
    gguf_pairs_neighbours: bool = False
    pairs_neighbours: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    activation: str = "silu"
    window: bool = False
    full_every: int | None = None
    rope_base: float = 10000.0
    local_rope_base: float | None = None
    rotary_part: float = 1.0
    unrotated_every: int | None = None
    full_unrotated: bool = False
    query_scale: float | None = None
    full_head_dim: int | None = None

    @property
    def experts(self) -> bool:
        """Whether its layers have several experts, or may have them."""
        return "router" in self.matrices or bool(self.beside)

    def activation_of(self, config: Mapping[str, Any]) -> str:
        """Of a model of this architecture with this config.json."""
        if self.activation == CLAMPED:
            return CLAMPED
        return str(config.get("hidden_activation") or config.get("hidden_act") or self.activation)

    def biases_of(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The matrices that have biases in a model with this config.json."""
        left_out = self.optional_biases and config.get("attention_bias") is False
        return () if left_out else self.biases
