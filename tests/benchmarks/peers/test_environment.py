"""Virtual environments of peers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.arm import LLAMA_CPP
from benchmarks.peers.environment import ArmError


def test_an_environment_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(environment.sys, "executable", "/nowhere/python")
    said: list[str] = []
    with pytest.raises(ArmError, match="could not be built"):
        environment.python_with(LLAMA_CPP, said.append)
    assert "minutes" in said[0]


def test_a_newer_python_is_found_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = (sys.version_info[0], sys.version_info[1] + 1)
    name = f"{ahead[0]}.{ahead[1]}"

    def put(path: Path, code: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nexit {code}\n")
        path.chmod(0o755)
        return path

    put(tmp_path / "shims" / f"python{name}", 1)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(ArmError, match=rf"Python {name} or newer"):
        environment.find_python(ahead)
    held = put(tmp_path / "pyenv/versions" / f"{name}.4" / "bin/python", 0)
    assert environment.find_python(ahead) == held
    assert environment.find_python((3, 11)) == Path(sys.executable)
