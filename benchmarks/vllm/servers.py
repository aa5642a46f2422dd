"""Start and ask the servers to be measured: vLLM with our drafter and its channel, and others over the same model."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.peers.environment import unknown
from benchmarks.published.arctic import arctic_folder
from benchmarks.vllm.launch import CACHE_ON_CPU, Launch, Vllm, VllmFailed, prepare
from hierchat.checks.runs import RequestError
from hierchat.config import data_dir
from hierchat.engine.remote.drafted import DrafterChannel, DrafterError

SECONDS = 600.0
"""A reply may take."""
_COUNTED = ("num_draft_tokens", "num_accepted_tokens")


class Server:
    """Ask a vLLM over HTTP."""

    def __init__(self, url: str, key: str) -> None:
        """Connect to a vLLM. Raises RequestError where nobody answers."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS, trust_env=False)
        try:
            self.model = str(self._http.get("/v1/models").raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise RequestError(f"No vLLM answers at {url}: {error}") from error

    def write(self, question: str, most: int, named: dict[str, Any] | None = None) -> list[int]:
        """Return the tokens of a greedy reply of at most `most`; `named`: vllm_xargs. Raises RequestError."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": most,
            "return_token_ids": True,
            "cache_salt": uuid4().hex,  # each arm reads the prompt anew, whoever asked before
        }
        if named:
            body["vllm_xargs"] = named
        try:
            answer = self._http.post("/v1/chat/completions", json=body).raise_for_status().json()
            return list(answer["choices"][0]["token_ids"])
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise RequestError(f"vLLM gave no reply: {error}") from error

    def drafted(self) -> tuple[int, int] | None:
        """Return how many tokens were proposed and how many were right since the server began, as vLLM counts them;
        None: it does not tell."""
        found: dict[str, int] = {}
        try:
            lines = self._http.get("/metrics").raise_for_status().text.splitlines()
        except httpx.HTTPError:
            return None
        for line in lines:
            for name in _COUNTED:
                if line.startswith(f"vllm:spec_decode_{name}_total"):
                    found[name] = found.get(name, 0) + int(float(line.rsplit(" ", 1)[1]))
        if len(found) < len(_COUNTED):
            return None
        return found["num_draft_tokens"], found["num_accepted_tokens"]

    def close(self) -> None:
        """Close the connection; the server goes on."""
        self._http.close()


class OwnServer(Server):
    """Ask vLLM with our drafter."""

    def __init__(self, url: str, key: str, port: int, token: str) -> None:
        """Connect to a vLLM and its drafter. `port` and `token`: of the drafter's channel. Raises RequestError."""
        super().__init__(url, key)
        self._run = uuid4().hex  # so that one run's replies are not another's
        self._users: set[str] = set()
        try:
            self._channel = DrafterChannel(port, token)
            self.about = self._channel.hello()
        except DrafterError as error:
            raise RequestError(
                f"{url} and the channel on port {port} must be vLLM with our drafter (docs/vllm.md): {error}"
            ) from error

    def write_for(self, user: str, question: str, most: int, reply: str, **named: int) -> list[int]:
        """Write a reply for one of the bench's users, "" for nobody; `named`: further vllm_xargs."""
        whose = self._whose(user)
        self._users.add(whose)
        return self.write(
            question, most, {"hierchat_user": whose, "hierchat_reply": self._run + reply, **named}
        )

    def step_ms(self, widest: int) -> list[float]:
        """Return the milliseconds that the drafter expects of forwards over 1 to `widest` rows. Raises RequestError."""
        try:
            return list(self._channel.figures()["step_ms"])[:widest]
        except DrafterError as error:
            raise RequestError(str(error)) from error

    def figures(self, user: str, reply: str) -> dict[str, Any]:
        """Return the drafter's figures of a reply. Raises RequestError."""
        try:
            return self._channel.reply(self._whose(user), self._run + reply, 0)
        except DrafterError as error:
            raise RequestError(str(error)) from error

    def close(self) -> None:
        """Close the connections, and delete the bench's users from the drafter. Raises RequestError."""
        super().close()
        try:
            for user in self._users - {""}:
                self._channel._ask("forget", user=user, all=True)
        except DrafterError as error:
            raise RequestError(str(error)) from error
        finally:
            self._channel.close()

    def _whose(self, user: str) -> str:
        """Return the drafter's name for one of the bench's users."""
        return f"bench {self._run} {user}" if user else ""


# The servers of `benchmarks vllm --model`: started one after the other, and ended behind it.


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
    """Start vLLM over a model (as `prepare` takes it) with our drafter, and with each of `methods`; `more`: arguments
    that all of them get. Nothing of it touches the user's own histories. Raises RequestError, ModelError,
    ArmError."""
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
            except VllmFailed as error:
                raise RequestError(str(error)) from error

        launch = prepare(served, cuda=cuda, drafts=True, more=more)
        start(launch, "ours", {"HIERCHAT_DRAFTER_DB": str(folder / "drafts.db")})
        own = ends.enter_context(closing(OwnServer(launch.url, launch.key, launch.channel, launch.token)))
        peers: dict[str, Server] = {}
        for name in methods:
            way = ["--speculative-config", json.dumps(METHODS[name])] if METHODS[name] else []
            peer = Launch(launch.name, launch.model, cuda, False, more=[*more, *way])
            start(peer, name, {"PYTHONPATH": str(arctic_folder())} if name == "suffix" else {})
            peers[name] = ends.enter_context(closing(Server(peer.url, peer.key)))
        yield own, peers
