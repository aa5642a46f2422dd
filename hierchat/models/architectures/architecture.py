"""What a file of this folder says of its architecture: facts that the loader and the CPU engine need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hierchat.models.architectures.names import EMBEDDING, HEAD, LAST_NORM, MATRICES, Name


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of MATRICES, SwiGLU, RMSNorm and rotary positions, and what of it others do otherwise.

    `model_type` is transformers' name, `gguf` that of GGUF files. `norms`: the norms of a layer, by the names of a
    BlockModel's vectors. `biases`: queries, keys and values have them. `gguf_pairs_neighbours`: for rotary positions,
    GGUF files pair neighbours within a head, where the engine pairs its halves. `window`: a `sliding_window` counts
    where config.json has no `use_sliding_window`.
    """

    model_type: str
    gguf: str
    norms: Mapping[str, Name]
    biases: bool = False
    gguf_pairs_neighbours: bool = False
    window: bool = False

    def tensors(self, layers: int) -> Iterator[Name]:
        """The names of all tensors of a model of so many layers; HEAD among them."""
        yield from (EMBEDDING, LAST_NORM, HEAD)
        for layer in range(layers):
            yield from (name.of(layer) for name in (*MATRICES.values(), *self.norms.values()))
            if self.biases:
                yield from (MATRICES[name].of(layer, "bias") for name in "qkv")
