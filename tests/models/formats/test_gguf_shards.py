"""Which files of a folder are whole models."""

from __future__ import annotations

import pytest

from hierchat.models.formats import gguf_head
from hierchat.models.formats.gguf_head import whole_models


def test_a_model_is_told_once_where_all_its_files_are_there() -> None:
    several = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert dict(whole_models(["b.gguf", *several])) == {"b.gguf": ["b.gguf"], several[0]: several}
    assert dict(whole_models(["b.gguf", "c.gguf", *several[:2]])) == {
        "b.gguf": ["b.gguf"],
        "c.gguf": ["c.gguf"],
    }
    assert not dict(whole_models(several[1:]))


def test_what_claims_more_files_than_there_are_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    names = gguf_head.shard_names
    monkeypatch.setattr(gguf_head, "shard_names", lambda name: asked.append(name) or names(name))
    assert dict(whole_models(["a-00001-of-99999.gguf", "b.gguf"])) == {"b.gguf": ["b.gguf"]}
    assert asked == ["b.gguf"]
