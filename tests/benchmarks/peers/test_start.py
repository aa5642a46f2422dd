"""What keeps a peer from being started."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.arm import open_peer
from benchmarks.peers.environment import ArmError
from hierchat.models.catalogue import Folder, ModelEntry, ModelSource
from tests.testing.tiny_chat import hosted


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("transformers-assisted", "--draft"),
        ("llama.cpp-lookup", "GGUF"),
        ("llama.cpp-draft", "--draft"),
        ("dejavuu", r"Python 3\.13 or newer"),
    ],
)
def test_peers_that_cannot_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    entry = ModelEntry(name="tiny", source=ModelSource(folder=Folder(path=tmp_path)))
    with pytest.raises(ArmError, match=reason):
        open_peer(name, entry, None, hosted().engine, 1, print)
