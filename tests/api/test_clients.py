"""Anthropic's own client, as it comes from the package index; OpenAI's is a dependency (test_openai.py)."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from tests.api.scripted import TOOLS_TEMPLATE, Script, make_slot, scripted, serving

PROGRAM = Path(__file__).with_name("with_anthropic.py")


@pytest.mark.large  # packages that are installed for it
def test_anthropic(tmp_path: Path) -> None:
    """In an environment of its own, from which nothing but this machine can be reached."""
    venv.create(tmp_path / "venv", with_pip=True)
    bin = tmp_path / "venv" / "bin"
    subprocess.run([bin / "pip", "install", "--quiet", "anthropic==2.12.0"], check=True)
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Script()
    with serving(tmp_path, make_slot(scripted(script, TOOLS_TEMPLATE)), "keys") as served:
        key = served.store.keys.add("clients")

        def run(what: str) -> object:
            done = subprocess.run(
                [bin / "python", PROGRAM, served.base, key, what],
                env=clean | nowhere | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.strip().splitlines()[-1])

        errors = ["NotFoundError", "BadRequestError"]
        assert run("") == {"whole": "Hello there.", "parts": "Hello there.", "errors": errors}
        script.text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
        assert run("tools") == [["weather", {"city": "Bern"}]]
