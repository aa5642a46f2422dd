"""What another vLLM tells of its drafts, and what stands in its place where it does not."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.vllm.servers import Server
from tests.testing.openai_server import Script, serving

COUNTED = """# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 8.0
vllm:spec_decode_num_draft_tokens_created{engine="0"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
"""


@pytest.mark.parametrize(
    ("metrics", "counted"),
    [(COUNTED, (8, 5)), (COUNTED.replace("num_accepted_tokens_total", "other"), None), ("", None)],
)
def test_counters_that_are_not_there_are_not_zero(metrics: str, counted: tuple[int, int] | None) -> None:
    with serving(Script(metrics=metrics)) as url, closing(Server(url, "")) as server:
        assert server.drafted() == counted
