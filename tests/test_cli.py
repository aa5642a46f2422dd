"""The command line, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hierchat.cli import main

ROOT = Path(__file__).parents[1]


def hierchat(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with an empty cache and no configuration."""
    places = {f"HIERCHAT_{name}": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run(
        [sys.executable, "-m", "hierchat", *arguments],
        cwd=ROOT,
        env={**os.environ, **places, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_models_list(tmp_path: Path) -> None:
    done = hierchat(tmp_path, "models", "list")
    assert done.returncode == 0, done.stderr
    assert "* the default" in done.stdout
    for family in ("smollm2", "qwen3", "llama"):
        assert family in done.stdout.lower()


@pytest.mark.parametrize(
    "arguments", [("models", "get", "nobody"), ("bench", "session", "--model", "nobody")]
)
def test_an_unknown_model_is_an_error_without_a_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = hierchat(tmp_path, *arguments)
    assert done.returncode == 1
    assert "No model is called 'nobody'." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["sing"], ["models"], ["models", "get"], ["bench", "session", "--turns", "x"]]
)
def test_wrong_arguments_show_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: hierchat")
