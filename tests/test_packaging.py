"""The container: its versions, what it copies, its user and its commands. The wheel is end_to_end/test_wheel.py's."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from hierchat.cli.main import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# One instruction a line: continued ones joined, comments gone
DOCKERFILE = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*|^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).splitlines()
    if line
]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def instruction(name: str) -> list[str]:
    return [rest for word, rest in DOCKERFILE if word == name]


def test_the_container_has_the_versions_of_the_project() -> None:
    pins = re.findall(r"[\w.-]+==[\w.]+", " ".join(instruction("RUN")))
    assert pins
    assert set(pins) <= set(PROJECT["dependencies"])
    least = PROJECT["requires-python"].removeprefix(">=")
    assert instruction("FROM") == [f"python:{least}-slim"]  # the version that CI runs


def test_the_container_gets_what_it_copies_and_runs_as_a_user() -> None:
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert allowed[0] == "*"
    for copied in instruction("COPY"):
        for name in copied.split()[:-1]:
            assert (ROOT / name).exists()
            assert f"!{name}" in allowed
    words = [word for word, _ in DOCKERFILE]
    assert instruction("USER") == ["hierchat"]
    assert words.index("USER") > max(at for at, word in enumerate(words) if word in ("RUN", "COPY"))
    (check,) = instruction("HEALTHCHECK")
    assert "/manifest.json" in json.loads(check.partition("CMD ")[2])[-1]
    compile(json.loads(check.partition("CMD ")[2])[-1], "check", "exec")


def test_the_commands_of_the_containers_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(instruction("ENTRYPOINT")[0]) == ["hierchat"]
    default = json.loads(instruction("CMD")[0])
    for service in COMPOSE["services"].values():
        assert service["ports"] == ["127.0.0.1:7860:7860"]  # nobody else, but where one says so
        assert {mount.partition(":")[2] for mount in service["volumes"]} == set(
            json.loads(instruction("VOLUME")[0])
        )
        assert main([*service.get("command", default), "--help"]) == 0
