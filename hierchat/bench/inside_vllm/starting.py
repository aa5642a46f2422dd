"""The servers of `bench vllm --model`: started one after the other, and ended behind it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from hierchat.bench.inside_vllm.servers import OwnServer, Server
from hierchat.bench.published.arctic_build import arctic_folder
from hierchat.config import data_dir
from hierchat.serve_vllm.launch import CACHE_ON_CPU, Launch
from hierchat.serve_vllm.prepare import prepare
from hierchat.serve_vllm.process import Vllm, VllmEnded
from hierchat.verify.asking.errors import RequestError, unknown

METHODS: Mapping[str, Mapping[str, Any] | None] = {
    "plain": None,
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    },
    "suffix": {"method": "suffix", "num_speculative_tokens": 32},
}
"""vLLM as it is, and its own ways to draft without a model, with the numbers of its documentation."""
Say = Callable[[str], None]


@contextmanager
def started(
    served: str, methods: Sequence[str], python: Path, more: Sequence[str], *, cuda: bool, say: Say
) -> Iterator[tuple[OwnServer, dict[str, Server]]]:
    """vLLM over a model (as `serve-vllm` takes it) with our drafter, and with each of `methods`; `more`: arguments that
    all of them get. Nothing of it touches the user's own histories. Raises RequestError, ModelError and ArmError."""
    if unknown_ones := [name for name in methods if name not in METHODS]:
        raise unknown("method", unknown_ones[0], METHODS)
    with ExitStack() as ends:
        # They stand side by side, so none may take a quarter of the memory.
        cache = {} if CACHE_ON_CPU in os.environ else {CACHE_ON_CPU: "1"}
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="hierchat-bench-")))

        def start(launch: Launch, name: str, variables: Mapping[str, str]) -> None:
            say(f"{name}:")
            try:
                vllm = Vllm(
                    launch.command(python),
                    {**launch.variables(), **cache, **variables},
                    data_dir() / "logs" / f"bench-vllm-{name}.log",
                )
                ends.callback(vllm.end)
                vllm.wait(launch.url, say)
            except VllmEnded as error:
                raise RequestError(str(error)) from error

        launch, _ = prepare(served, cuda=cuda, drafts=True, more=more)
        start(launch, "ours", {"HIERCHAT_DRAFTER_DB": str(folder / "drafts.db")})
        own = ends.enter_context(closing(OwnServer(launch.url, launch.key, launch.channel, launch.token)))
        peers: dict[str, Server] = {}
        for name in methods:
            way = ["--speculative-config", json.dumps(METHODS[name])] if METHODS[name] else []
            peer = Launch(launch.name, launch.model, cuda, False, more=[*more, *way])
            start(peer, name, {"PYTHONPATH": str(arctic_folder())} if name == "suffix" else {})
            peers[name] = ends.enter_context(closing(Server(peer.url, peer.key)))
        yield own, peers
