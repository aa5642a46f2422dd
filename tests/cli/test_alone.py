"""`hierchat chat` with a model of its own, in a process as a user starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hierchat.store import LOCAL_USER, Store
from tests.testing.tiny_chat import model, tokenizer

if sys.platform == "win32":
    pytest.skip("needs a terminal of Unix", allow_module_level=True)

from .terminal import piped, with_kernels

YAML = """
models:
  tiny:
    source: {{folder: {{path: {folder}}}}}
    blocks: 4
    licence: none
"""
ALONE = ["--alone", "--model", "tiny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The places of a program that has one tiny model."""
    folder = tmp_path_factory.mktemp("alone")
    with_kernels(folder)
    for place in ("CONFIG", "model"):
        (folder / place).mkdir()
    model().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    (folder / "CONFIG" / "models.yaml").write_text(YAML.format(folder=folder / "model"))
    return folder


def test_answers_stand_with_the_chats_of_the_page(folder: Path) -> None:
    first = piped(folder, *ALONE, "--max-new-tokens", "8", "--json", "hello")
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert (told["model"], told["finish"], told["figures"]["tokens"]) == ("tiny", "length", 8)
    # Another program holds the same database meanwhile.
    with Store.open(folder / "DATA" / "hierchat.db") as store:
        user = store.users.ids()[LOCAL_USER]
        store.chats.create(user)
        second = piped(folder, *ALONE, "--max-new-tokens", "8", "--continue", "--system", "Be brief.", "more")
        assert second.returncode == 0, second.stderr
        path = store.messages.path(user, told["chat"])
        assert [message.text for message in path[:2]] == ["hello", told["text"]]
        assert path[2].text == "more"
        assert path[3].text == second.stdout.removesuffix("\n")
        assert [message.state for message in path] == ["complete"] * 4
        settings = store.chats.settings(user, told["chat"])
        assert settings
        assert (settings.system_prompt, settings.sampling["max_new_tokens"]) == ("Be brief.", 8)
