"""Datasets of the hub, against a small hub on localhost."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator

import pytest

from hierchat.cli.main import main
from hierchat.texts.corpora import listed
from tests.testing.fake_hub import REPO, FakeHub

LINE = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}]}\n'


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {"data/train.jsonl": LINE * 3, "README.md": b"not wanted", "data/train.csv": b"not wanted"}
    with FakeHub(files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
        server.shutdown()


def test_a_dataset_is_fetched_and_added(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "add", f"hub:{REPO}"]) == 0
    (corpus,) = listed()
    assert (corpus.name, corpus.meta and corpus.meta.texts) == ("org-tiny", 3)
    assert corpus.meta
    assert corpus.meta.sources == (f"hub:{REPO}",)
    assert not any("README" in path or "csv" in path for method, path, _ in hub.asked if method == "GET")
    asked = len(hub.asked)
    assert main(["corpus", "add", f"hub:{REPO}", "--name", "again"]) == 0
    assert len(hub.asked) == asked  # what is there needs no network


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("hub:org/other", "There is no public dataset org/other on the hub. Check its name at http"),
        ("hub:org", "'hub:org' is no dataset: write hub:owner/name."),
    ],
)
def test_no_such_dataset(hub: FakeHub, capsys: pytest.CaptureFixture[str], source: str, reason: str) -> None:
    assert main(["corpus", "add", source]) == 1
    assert f"hierchat: {reason}" in capsys.readouterr().err
    assert listed() == []


def test_a_dataset_in_parquet_alone_says_what_to_install(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "hierchat.texts.build.importlib.util.find_spec",
        lambda name, *rest: None if name == "pyarrow" else found(name, *rest),
    )
    hub.files = {"data/train.parquet": b"PAR1"}
    assert main(["corpus", "add", f"hub:{REPO}"]) == 1
    assert "Datasets in Parquet need `pip install pyarrow`." in capsys.readouterr().err


def test_without_a_network(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["corpus", "add", f"hub:{REPO}"]) == 1
    assert "The hub cannot be reached, so org/tiny cannot be fetched." in capsys.readouterr().err
