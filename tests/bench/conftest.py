from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ..chat.tiny import model, tokenizer


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """A tiny model's threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny_in_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model tiny` is there, and nothing else is touched."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path))
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    (tmp_path / "models.yaml").write_text("models:\n  tiny:\n    source: {folder: {path: tiny}}\n")
