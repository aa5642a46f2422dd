"""Models of the catalogue that a server computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.fetch.bring import fetched_size, get, is_fetched, removable, status
from hierchat.models.fetch.folder import weight_bytes
from hierchat.models.load.check import expected_step, fit, refusal
from hierchat.models.progress import CatalogueError, UnsupportedError

ENTRY = "models:\n  here:\n    default: true\n    source: {folder: {path: x}}\n  there:\n    engine: {openai: {%s}}\n"


def read(tmp_path: Path, said: str) -> Catalogue:
    (tmp_path / "models.yaml").write_text(ENTRY % said, encoding="utf-8")
    return read_catalogue([tmp_path / "models.yaml"])


def test_nothing_of_it_is_here_and_nothing_is_missing(tmp_path: Path) -> None:
    entry = read(tmp_path, "url: 'http://127.0.0.1:8000/v1/', model: big, key: secret-words").entry("there")
    assert entry.engine is not None
    assert entry.engine.openai.url == "http://127.0.0.1:8000"
    assert entry.engine.openai.secret == "secret-words"
    for told in (repr(entry), str(entry), entry.model_dump_json()):
        assert "secret-words" not in told
    assert is_fetched(entry, "cpu")
    assert status(entry, "cpu").present
    assert (fetched_size(entry, "cpu"), weight_bytes(entry, "cpu"), removable(entry, "cpu")) == (0, None, 0)
    assert fit(entry, "cpu").verdict == "yes"
    assert "Runs at http://127.0.0.1:8000" in fit(entry, "cpu").why
    assert (refusal(entry, "cpu", "blocks"), expected_step(entry, "cpu")) == ("", None)
    with pytest.raises(UnsupportedError, match=r"there is computed by http://127\.0\.0\.1:8000"):
        get(entry)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("url: 127.0.0.1", "expected an address such as"),
        ("url: 'ftp://host'", "expected an address such as"),
        ("url: 'http://name:secret-words@host'", "expected an address such as"),
        ("url: 'http://host', key: secret-words, key_variable: KEY", "not both"),
        ("url: 'http://host', colour: red", "unknown field"),
    ],
)
def test_what_is_wrong_is_said_without_the_key(tmp_path: Path, said: str, wrong: str) -> None:
    with pytest.raises(CatalogueError, match=wrong) as caught:
        read(tmp_path, said)
    assert "secret-words" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    ["    licence: MIT\n", "    source: {folder: {path: x}}\n    engine: {openai: {url: 'http://h'}}\n"],
)
def test_a_source_or_an_engine(tmp_path: Path, fields: str) -> None:
    (tmp_path / "models.yaml").write_text(f"models:\n  one:\n    default: true\n{fields}", encoding="utf-8")
    with pytest.raises(CatalogueError, match="give either a source or an engine"):
        read_catalogue([tmp_path / "models.yaml"])
