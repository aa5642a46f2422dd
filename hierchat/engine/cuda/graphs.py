"""CUDA graphs, captured when first needed; those unused the longest go where all together take too much memory."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

log = logging.getLogger(__name__)
CAP = 512 * 2**20
"""Bytes that graphs may hold for what they compute on the way."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Graph(Generic[T]):
    """A recorded body: `replay` runs it again over the same memory, `out` lies where it did."""

    replay: Callable[[], None]
    out: T
    size: int
    """Bytes."""


def capture(body: Callable[[], T]) -> Graph[T]:
    """Record `body` on the current CUDA device. It runs once before, so that its kernels are compiled and chosen."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        body()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    return Graph(graph.replay, out, max(0, torch.cuda.memory_reserved() - before))


class Graphs(Generic[T]):
    """Runs bodies by key, each as the graph that was recorded at its first run."""

    def __init__(
        self, cap: int = CAP, capture: Callable[[Callable[[], T]], Graph[T]] | None = capture
    ) -> None:
        """`capture`: None to run every body as it is."""
        self._cap = cap
        self._capture = capture
        self._held: OrderedDict[Hashable, Graph[T]] = OrderedDict()
        self.recorded = False
        """Whether the last run recorded a graph, which takes many times a replay."""
        self.refused = ""
        """Why bodies run as they are though graphs were wanted."""

    @property
    def kind(self) -> str:
        """What it does now: "graphs", or "rows" where bodies run as they are."""
        return "rows" if self._capture is None else "graphs"

    @property
    def keys(self) -> list[Hashable]:
        """Of what is held, the longest unused first."""
        return list(self._held)

    def run(self, key: Hashable, body: Callable[[], T]) -> T:
        """What `body` returns, in memory that the next run may use again.

        Where memory is short or the model does what a graph cannot hold, bodies run as they are from then on.
        """
        self.recorded = self._capture is not None and key not in self._held
        if self._capture is None:
            return body()
        if self.recorded:
            try:
                graph = self._capture(body)
            except RuntimeError as error:
                self.refused = (str(error).strip().splitlines() or [type(error).__name__])[0]
                log.warning("no CUDA graphs: %s", self.refused)
                self.clear()
                self._capture = None
                return body()
            self._make_room(graph.size)
            self._held[key] = graph
        self._held.move_to_end(key)
        self._held[key].replay()
        return self._held[key].out

    def clear(self) -> None:
        """Drop all."""
        self._held.clear()

    def _make_room(self, size: int) -> None:
        while self._held and sum(graph.size for graph in self._held.values()) + size > self._cap:
            self._held.popitem(last=False)
