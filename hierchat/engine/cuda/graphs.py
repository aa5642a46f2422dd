"""Record what is launched on CUDA as graphs, and replay it: launching a graph takes a few microseconds."""

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
    """Hold a recorded body. `replay` runs it again, and writes its result to the memory of `out`."""

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
    """Runs bodies by key, each as the graph recorded at its first run; drops old ones if memory is short."""

    def __init__(self, capture: Callable[[Callable[[], T]], Graph[T]] | None = capture) -> None:
        """Take `capture`: None to run every body as it is."""
        self._capture = capture
        self.held: OrderedDict[Hashable, Graph[T]] = OrderedDict()
        """Recorded graphs by key, the longest unused first."""
        self.recorded = False
        """Whether the last run recorded a graph, which takes many times a replay."""

    def run(self, key: Hashable, body: Callable[[], T]) -> T:
        """Return the result of `body`, in memory that the next run may reuse. Without memory for a graph, or if the
        model cannot be recorded, bodies run plainly."""
        self.recorded = self._capture is not None and key not in self.held
        if self._capture is None:
            return body()
        if self.recorded:
            try:
                graph = self._capture(body)
            except RuntimeError as error:
                log.warning("no CUDA graphs", exc_info=error)
                self.clear()
                self._capture = None
                return body()
            while self.held and sum(one.size for one in self.held.values()) + graph.size > CAP:
                self.held.popitem(last=False)
            self.held[key] = graph
        self.held.move_to_end(key)
        self.held[key].replay()
        return self.held[key].out

    def clear(self) -> None:
        self.held.clear()
