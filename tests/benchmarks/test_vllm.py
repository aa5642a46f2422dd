"""What another vLLM tells of its drafts, and what stands in its place where it does not."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import pytest

from benchmarks.vllm.measure import Bench
from benchmarks.vllm.servers import OwnServer, Server
from tests.testing.openai_server import Script, serving

COUNTED = """# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 8.0
vllm:spec_decode_num_draft_tokens_created{engine="0"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
"""


class Own:
    """Writes the same to all, in forwards of one token."""

    def write_for(self, user: str, question: str, most: int, reply: str, **named: int) -> list[int]:
        return [1, 2, 3]

    def figures(self, user: str, reply: str) -> dict[str, Any]:
        steps = [{"tokens": [token], "draft_ms": 0.0} for token in (1, 2, 3)]
        return {"steps": steps, "proposed": {}, "accepted": {}}


class Peer:
    """Has two drafts accepted in each reply; tells so where `counts`, or until it was asked so often."""

    def __init__(self, counts: int) -> None:
        self.counts, self.replies = counts, 0

    def write(self, question: str, most: int) -> list[int]:
        self.replies += 1
        return [1, 2, 3, 4, 5]

    def drafted(self) -> tuple[int, int] | None:
        self.counts -= 1
        return (3 * self.replies, 2 * self.replies) if self.counts >= 0 else None


@pytest.mark.parametrize(
    ("metrics", "counted"),
    [(COUNTED, (8, 5)), (COUNTED.replace("num_accepted_tokens_total", "other"), None), ("", None)],
)
def test_counters_that_are_not_there_are_not_zero(metrics: str, counted: tuple[int, int] | None) -> None:
    with serving(Script(metrics=metrics)) as url, closing(Server(url, "")) as server:
        assert server.drafted() == counted


@pytest.mark.parametrize(
    ("counts", "figures"), [(100, (2.0, 9, 6)), (3, (None, None, None)), (0, (None,) * 3)]
)
def test_without_counters_there_is_no_t(counts: int, figures: tuple[float | None, ...]) -> None:
    bench = Bench(cast(OwnServer, Own()), {"other": cast(Server, Peer(counts))}, 5)
    arm = bench.measure(["a", "b", "c"], 1, lambda *_: None, again=False)["arms"]["other"]
    assert (arm["tokens_per_forward"], arm["proposed"], arm["accepted"]) == figures
    assert arm["tokens"] == 15
