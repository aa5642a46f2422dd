"""Anthropic's own client, as it comes from the package index; OpenAI's is a dependency (test_openai.py)."""

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from tests.api.scripted import TOOLS_TEMPLATE, Script, make_slot, scripted, serving

PROGRAM = """
import json, sys
import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1].removesuffix("/v1"), api_key=sys.argv[2], max_retries=0)
asked = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}]}
if sys.argv[3] == "tools":
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    with client.messages.stream(tools=[tool], **asked) as stream:
        blocks = stream.get_final_message().content
    print(json.dumps([[block.name, block.input] for block in blocks if block.type == "tool_use"]))
else:
    whole = client.messages.create(**asked).content[0].text
    with client.messages.stream(**asked) as stream:
        parts = "".join(stream.text_stream)
    errors = []
    for wrong in ({"model": "nobody"}, {"extra_body": {"temperature": 99}}):
        try:
            client.messages.create(**asked | wrong)
        except anthropic.APIStatusError as raised:
            errors.append(type(raised).__name__)
    print(json.dumps([whole, parts, errors]))
"""


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
                [bin / "python", "-c", PROGRAM, served.base, key, what],
                env=clean | nowhere | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout.strip().splitlines()[-1])

        assert run("") == ["Hello there.", "Hello there.", ["NotFoundError", "BadRequestError"]]
        script.text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
        assert run("tools") == [["weather", {"city": "Bern"}]]
