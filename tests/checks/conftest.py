from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat.tiny import model, tokenizer
from tests.testing.threads import one_thread


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def tiny_in_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model tiny` is there, and nothing else is touched."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path))
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    (tmp_path / "models.yaml").write_text("models:\n  tiny:\n    source: {folder: {path: tiny}}\n")
