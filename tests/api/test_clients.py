"""Clients that people use, as they come from the package index."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.scripted import TOOLS_TEMPLATE, Script, Served, make_slot, scripted, serving, tiny

pytestmark = pytest.mark.large  # over 300 MB of packages
# 1.82.7, 1.82.8 and 1.107 of litellm were not its makers': pinned to one from before.
PACKAGES = ("anthropic==2.12.0", "langchain-openai==1.7.3", "litellm==1.80.0", "llm==0.36")
PROGRAMS = Path(__file__).parents[1] / "clients"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the clients' own; HIERCHAT_CLIENTS names one that is there."""
    if there := os.environ.get("HIERCHAT_CLIENTS"):
        return Path(there)
    folder = tmp_path_factory.mktemp("clients")
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    return folder


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, script: Script) -> Iterator[Served]:
    with serving(
        tmp_path_factory.mktemp("served"), make_slot(scripted(script, TOOLS_TEMPLATE)), "keys"
    ) as served:
        yield served


@pytest.fixture(scope="module")
def key(served: Served) -> str:
    return served.store.keys.add("clients")


def run(environment: Path, *command: str | Path, **variables: str) -> str:
    """What a program of that environment prints. It can reach no proxy, and nothing but this machine."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        env=clean | nowhere | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(environment: Path, name: str, address: str, key: str, what: str = "") -> Any:
    return json.loads(
        run(environment, "python", PROGRAMS / name, address, key, what).strip().splitlines()[-1]
    )


def test_llm(environment: Path, served: Served, key: str, tmp_path: Path) -> None:
    entry = f"- model_id: mine\n  model_name: tiny\n  api_base: {served.base}\n  api_key_name: mine\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    for more in ((), ("--no-stream",), ("-s", "Be brief.", "-o", "max_tokens", "50", "-o", "seed", "3")):
        said = run(
            environment, "llm", "-m", "mine", "hello", "--key", key, *more, LLM_USER_PATH=str(tmp_path)
        )
        assert said.strip() == "Hello there."


def test_langchain(environment: Path, served: Served, script: Script, key: str) -> None:
    got = program(environment, "with_langchain.py", served.base, key)
    assert got["whole"] == got["parts"] == "Hello there."
    assert got["batch"] == ["Hello there."] * 2
    assert got["tokens"][0] == got["tokens"][1] > 0
    script.text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    try:
        assert program(environment, "with_langchain.py", served.base, key, "tools") == [
            ["weather", {"city": "Bern"}]
        ]
    finally:
        script.text = "Hello there."


def test_langchain_gets_the_form_that_it_asks_for(environment: Path, tmp_path: Path) -> None:
    with serving(tmp_path, make_slot(tiny)) as served:
        got = program(environment, "with_langchain.py", served.base, "none", "form")
    assert 0 <= got["long"] <= 9


def test_anthropic(environment: Path, served: Served, script: Script, key: str) -> None:
    got = program(environment, "with_anthropic.py", served.base, key)
    assert got["whole"] == got["parts"] == "Hello there."
    assert got["errors"] == ["NotFoundError", "BadRequestError"]
    script.text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    try:
        assert program(environment, "with_anthropic.py", served.base, key, "tools") == [
            ["weather", {"city": "Bern"}]
        ]
    finally:
        script.text = "Hello there."


def test_litellm(environment: Path, served: Served, key: str) -> None:
    got = program(environment, "with_litellm.py", served.base, key)
    assert got["whole"] == got["parts"] == got["waited"] == got["text"] == "Hello there."
    assert got["errors"] == ["NotFoundError", "AuthenticationError", "BadRequestError"]
