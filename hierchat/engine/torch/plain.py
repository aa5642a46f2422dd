"""Run any causal language model of transformers with its own modules and cache, as a last resort.
Nothing is rolled back: a commit selects the state after a node. Every node needs a forward, so nothing is drafted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.generation.utils import ALL_CACHE_NAMES

from hierchat.engine.engine import clear_memory_errors
from hierchat.engine.runner import CachedSequence, Runner
from hierchat.engine.torch.torch_runner import MOST_SEQUENCES, precision
from hierchat.engine.verification import ArrayRows, Rows
from hierchat.models.progress import UnsupportedError

Way = Literal["pieces", "whole", "anew"]
"""How a text is read. pieces: any tokens after any state. whole: at once, then token by token. anew: all, each time."""
WAYS: tuple[Way, ...] = ("pieces", "whole", "anew")
KEPT = 2
"""Number of prompts whose final states a sequence keeps, to continue from if a text changes after them."""
PROBE = 12
"""Tokens of the text by which a way is tried."""
TOLERANCE, ROUGHLY = 0.02, 0.3
"""By which logits of two ways may differ, in their standard deviations: in float32, and in anything less precise."""


@dataclass(frozen=True, slots=True)
class TextState:
    """Caches of a model after the first `length` tokens of a text, by the names of its arguments. Never changed."""

    length: int = 0
    kept: Mapping[str, Any] = field(default_factory=dict)


class PlainRunner(Runner):
    """Runs any causal language model of transformers behind the Runner contract, without drafts; sequences take turns.
    Raises UnsupportedError if transformers itself cannot generate with it."""

    drafts = False

    def __init__(self, model: Any, *, context_length: int | None = None) -> None:
        text = model.config.get_text_config(decoder=True)
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary: int = text.vocab_size
        self.context_length = context_length or getattr(text, "max_position_embeddings", None) or 2048
        self.backend = precision(model)
        self.most_sequences = MOST_SEQUENCES
        takes = inspect.signature(model.forward).parameters
        self._positions, self._last_alone = "position_ids" in takes, "logits_to_keep" in takes
        self.way: Way = self._find_way()

    def open(self) -> PlainSequence:
        return PlainSequence(self)

    def read(self, text: Sequence[int], state: TextState) -> tuple[TextState, NDArray[np.float32]]:
        """Return the state and the logits after `text`; `state` is the state after a beginning of it."""
        if self.way == "whole" and 0 < state.length < len(text) - 1:
            for end in range(state.length + 1, len(text)):
                state, _ = self._forward(text[:end], state)
        return self._forward(text, state)

    @torch.inference_mode()
    def _forward(self, text: Sequence[int], state: TextState) -> tuple[TextState, NDArray[np.float32]]:
        if self.way == "anew":
            state = TextState()
        ids = torch.tensor([list(text)], device=self.device)
        kept = _copied(state)
        if not kept and self.way != "anew" and self.model._supports_default_dynamic_cache():
            name = "cache_params" if "mamba" in type(self.model).__name__.lower() else "past_key_values"
            kept = {name: DynamicCache(config=self.model.config.get_text_config(decoder=True))}
        arguments = {"use_cache": self.way != "anew", **kept}
        if self._positions:
            arguments["position_ids"] = torch.arange(len(text), device=self.device)[None]
        given = self.model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=len(text) - state.length,
            is_first_iteration=not state.length,
            **arguments,
        )
        if self._last_alone:
            given["logits_to_keep"] = 1
        out = self.model(**given, return_dict=True)
        kept = {name: out[name] for name in ALL_CACHE_NAMES if out.get(name) is not None}
        if "mems" in kept or "past_buckets_states" in kept:  # what two old models call them
            kept = {"past_key_values": next(iter(kept.values()))}
        return TextState(len(text), kept), out.logits[0, -1].float().numpy(force=True)

    def _find_way(self) -> Way:
        """Find the first way of computing step by step whose logits are those of the whole text at once."""
        text = np.random.default_rng(0).integers(0, self.vocabulary, PROBE).tolist()
        self.way = "anew"
        with clear_memory_errors():
            try:
                expected = self._forward(text, TextState())[1]
            except Exception as error:
                said = f"{type(error).__name__}: {(str(error) or 'no reason given').strip().splitlines()[0]}"
                raise UnsupportedError(f"transformers cannot compute this model: {said}") from error
        if not np.isfinite(expected).all():
            raise UnsupportedError(
                "This model computes no numbers. Its files may be damaged: fetch them again."
            )
        self.vocabulary = len(expected)
        most = (TOLERANCE if self.backend == "float32" else ROUGHLY) * float(expected.std())
        for self.way in WAYS[:2]:
            with suppress(Exception):  # read in two, and again after others; a way that raises is none
                begun, _ = self.read(text[: PROBE // 2], TextState())
                self.read([*text[: PROBE // 2], *text[:3]], begun)
                if np.abs(self.read(text, begun)[1] - expected).max() <= most:
                    return self.way
        return "anew"


class PlainSequence(CachedSequence):
    """Hold one text of a PlainRunner."""

    runner: PlainRunner

    def __init__(self, runner: PlainRunner) -> None:
        super().__init__(runner)
        self._state = TextState()
        self._ends: list[TextState] = []
        self._segment: Sequence[int] = ()
        self._nodes: list[TextState] = []

    def read(self, tokens: Sequence[int], hidden: bool = False) -> None:
        self.tokens.extend(tokens)
        if self.runner.way == "pieces" and tokens:
            self._state, _ = self.runner.read(self.tokens, self._state)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        """Compute the logits of a segment node by node, each after the state of its parent."""
        begun = self._read()
        self._segment, self._nodes = tokens, []
        texts: list[list[int]] = []
        rows = np.empty((len(tokens), self.vocabulary), np.float32)
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            before, state = (self.tokens, begun) if parent < 0 else (texts[parent], self._nodes[parent])
            texts.append([*before, token])
            state, rows[node] = self.runner.read(texts[-1], state)
            self._nodes.append(state)
        return ArrayRows(rows)

    def commit(self, nodes: Sequence[int]) -> None:
        self.tokens.extend(self._segment[node] for node in nodes)
        if nodes:
            self._state = self._nodes[nodes[-1]]

    def rollback(self, length: int) -> None:
        del self.tokens[length:]
        self._ends = [end for end in self._ends if end.length <= length]
        if self._state.length > length:
            self._state = _cropped(self._state, length) or max(
                self._ends, key=lambda end: end.length, default=TextState()
            )

    def wipe(self) -> None:
        self._segment, self._nodes = (), []

    def close(self) -> None:
        super().close()
        self._state, self._ends, self._nodes = TextState(), [], []

    def _read(self) -> TextState:
        if self._state.length < len(self.tokens):
            self._state, _ = self.runner.read(self.tokens, self._state)
        if not self._nodes or self._state not in self._nodes:
            others = [end for end in self._ends if end.length != self._state.length]
            self._ends = [*others, self._state][-KEPT:]
        return self._state


def _copied(state: TextState) -> dict[str, Any]:
    """Copy a state for a forward to change. Keys and values are shared: new ones are appended in another place."""
    shared: dict[int, Any] = {}
    for cache in state.kept.values():
        for layer in getattr(cache, "layers", ()):
            if isinstance(layer, DynamicLayer):
                shared |= {id(tensor): tensor for tensor in (layer.keys, layer.values) if tensor is not None}
    return deepcopy(dict(state.kept), shared)


def _cropped(state: TextState, length: int) -> TextState | None:
    if not length:
        return TextState()
    kept = _copied(state)
    try:
        if not kept or not all(cache.is_croppable for cache in kept.values()):
            return None
        for cache in kept.values():
            cache.crop(length - state.length)
    except (AttributeError, RuntimeError):  # a cache of an older kind, or a window that has moved on
        return None
    return TextState(length, kept)
