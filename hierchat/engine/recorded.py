"""The steps of a recorded reply without a model: drafts that match what was written are accepted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.proposer import Proposer
from hierchat.engine.step import TARGET, Step


def steps(
    drafter: Proposer | None,
    prompt: Sequence[int],
    reply: Sequence[int],
    top: NDArray[np.int32] | None = None,
) -> Iterator[Step]:
    """As the engine would take them. `top` [reply, k]: the target's likeliest tokens where it chose each token, for a
    drafter that asks for them. `draft_ms` is what proposing and observing took of this thread's time."""
    at = 0
    if drafter:
        drafter.begin(prompt)
    while at < len(reply):
        began = time.thread_time()
        tree = drafter.propose() if drafter else None
        took = time.thread_time() - began
        kept, sources = 1, [TARGET]
        if tree:
            nodes: dict[tuple[int, int], int] = {}
            for node, pair in enumerate(zip(tree.parents, tree.tokens, strict=True)):
                nodes.setdefault(pair, node)
            above, sources = -1, []
            for token in reply[at:]:
                above = nodes.get((above, token), -2)
                sources.append(tree.sources[above] if above >= 0 else TARGET)
                if above < 0:
                    break
            kept = len(sources)
        tokens = reply[at : at + kept]
        if drafter:
            seen = None if top is None or not drafter.top else _widened(top[at : at + kept], drafter.top)
            began = time.thread_time()
            drafter.observe(tokens, seen)
            took += time.thread_time() - began
        at += kept
        yield Step(
            tokens=tuple(tokens),
            sources=tuple(sources),
            proposed=MappingProxyType(dict(Counter(tree.sources if tree else ()))),
            width=1 + (len(tree) if tree else 0),
            draft_ms=took * 1e3,
        )


def _widened(top: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """The first `count` of each row, -1 where fewer were recorded."""
    wide = np.full((len(top), count), -1, np.int32)
    known = min(count, top.shape[1])
    wide[:, :known] = top[:, :known]
    return wide
