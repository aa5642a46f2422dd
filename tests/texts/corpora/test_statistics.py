"""What may draft for a model: the texts that ship, the user's corpora, and one more file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.makers.seeds import write_texts
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.texts import corpora
from hierchat.texts import corpora as module
from hierchat.texts.corpora import add, corpora_dir, require_readable, statistics
from hierchat.texts.text_files import CorpusError, Reader


@pytest.fixture(autouse=True)
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the texts lie that ship."""
    folder = tmp_path / "seeds"
    monkeypatch.setattr(corpora, "seeds_dir", lambda: folder)
    module._warn.cache_clear()
    return folder


def pack(folder: Path, name: str, texts: list[str]) -> None:
    write_texts(folder / f"{name}.jsonl.xz", texts)


def entry(name: str = "tiny") -> ModelEntry:
    return read_catalogue().entry(name)


def texts_of(tokenizer: Any, found: Any) -> list[str]:
    ends = np.flatnonzero(found.tokens == BREAK)
    return [tokenizer.decode(ids[ids != BREAK]) for ids in np.split(found.tokens, ends)[:-1]]


def store(tmp_path: Path, tokenizer: Any, name: str, text: str) -> None:
    (tmp_path / f"{name}.txt").write_text(text)
    add(name, Reader([tmp_path / f"{name}.txt"]), tokenizer, "tiny", [f"{name}.txt"])


def test_seed_stored_and_extra_in_this_order(tmp_path: Path, seeds: Path, tokenizer: Any) -> None:
    pack(seeds, "tiny", ["seed one", "seed two"])
    store(tmp_path, tokenizer, "mine", "my text")
    (tmp_path / "extra.jsonl").write_text('{"text": "extra"}')
    found = statistics(entry(), tokenizer, tmp_path / "extra.jsonl")
    assert [one.name for one in found] == ["seed", "mine", "extra"]
    assert [texts_of(tokenizer, one) for one in found] == [["seed one", "seed two"], ["my text"], ["extra"]]
    assert all(isinstance(one.order, np.memmap) for one in found)
    without = statistics(entry(), tokenizer, tmp_path / "extra.jsonl", stored=False)
    assert [one.name for one in without] == ["seed", "extra"]


def test_nothing_at_all(tokenizer: Any) -> None:
    assert statistics(entry(), tokenizer) == []


def test_texts_that_ship_draft_for_every_model_its_own_ones_last(seeds: Path, tokenizer: Any) -> None:
    pack(seeds, "tiny", ["by tiny", " ", "abab"])
    pack(seeds, "twin", ["by twin"])
    pack(seeds, "much", [f"much {number**9}" for number in range(99)])
    expected = {"tiny": ["by twin", "by tiny", "abab"], "twin": ["by tiny", "abab", "by twin"]}
    for name, own in {**expected, "other": ["by tiny", "abab", "by twin"]}.items():
        tokens = load_tokenizer(entry(name))
        (found,) = statistics(entry(name), tokens)
        texts = texts_of(tokens, found)
        assert [text for text in texts if not text.startswith("much")] == own
        assert len(texts) == 99 + 3


def test_who_wrote_more_than_all_others_has_that_alone(seeds: Path, tokenizer: Any) -> None:
    pack(seeds, "twin", ["by twin"])
    pack(seeds, "tiny", [f"much {number**9}" for number in range(99)])
    assert len(texts_of(tokenizer, statistics(entry(), tokenizer)[0])) == 99
    assert len(texts_of(tokenizer, statistics(entry("twin"), tokenizer)[0])) == 99 + 1


def test_texts_that_ship_are_read_once_for_their_content(
    seeds: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(seeds, "tiny", ["one"])
    assert statistics(entry(), tokenizer, waits=False) == []
    statistics(entry(), tokenizer)
    with monkeypatch.context() as closed:
        closed.setattr(corpora, "build", None)
        for waits in (True, False):
            (found,) = statistics(entry(), tokenizer, waits=waits)
            assert texts_of(tokenizer, found) == ["one"]
    pack(seeds, "tiny", ["changed"])
    assert statistics(entry(), tokenizer, waits=False) == []
    (found,) = statistics(entry(), tokenizer)
    assert texts_of(tokenizer, found) == ["changed"]


@pytest.mark.parametrize("cut", [0, 20, -9])
def test_damaged_texts_that_ship_only_leave_a_line(
    seeds: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    pack(seeds, "tiny", ["one " * 500])
    file = seeds / "tiny.jsonl.xz"
    file.write_bytes(file.read_bytes()[:cut])
    assert statistics(entry(), tokenizer) == []
    # A store that another test left may say meanwhile that its folder is gone.
    (line,) = [one.getMessage() for one in caplog.records if one.name != "hierchat.store.connection"]
    assert "that ship are not used" in line


def test_an_unwritable_cache_only_leaves_a_line(
    seeds: Path,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack(seeds, "tiny", ["one"])
    store(tmp_path, tokenizer, "mine", "my text")
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "no-folder"))
    (found,) = statistics(entry(), tokenizer)
    assert found.name == "mine"
    assert "that ship are not used" in caplog.text


def test_a_damaged_corpus_is_said_once_and_the_others_draft(
    tmp_path: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path, tokenizer, "bad", "my text")
    store(tmp_path, tokenizer, "good", "my text")
    (order,) = corpora_dir().glob("bad/*/order.npy")
    order.write_bytes(order.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    for _ in range(2):
        assert [one.name for one in statistics(entry(), tokenizer)] == ["good"]
    assert [one for one in caplog.record_tuples if one[0] == "hierchat.texts.corpora"] == [
        (
            "hierchat.texts.corpora",
            logging.WARNING,
            "The corpus bad is not used: order.npy is altered. Add it again with --replace, or remove it.",
        )
    ]


def test_a_corpus_of_another_tokenizer_does_not_draft(tmp_path: Path, tokenizer: Any) -> None:
    store(tmp_path, tokenizer, "mine", "my text")
    assert statistics(entry("other"), load_tokenizer(entry("other"))) == []
    assert len(statistics(entry("twin"), load_tokenizer(entry("twin")))) == 1


def test_an_extra_file_is_built_once_for_its_content(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = tmp_path / "extra.txt"
    extra.write_text("one")
    statistics(entry(), tokenizer, extra)
    (tmp_path / "copy.txt").write_text("one")
    with monkeypatch.context() as closed:
        closed.setattr(module, "build", None)
        for same in (extra, tmp_path / "copy.txt"):
            (found,) = statistics(entry(), tokenizer, same)
            assert texts_of(tokenizer, found) == ["one"]
    extra.write_text("changed")
    (found,) = statistics(entry(), tokenizer, extra)
    assert texts_of(tokenizer, found) == ["changed"]
    other = load_tokenizer(entry("other"))
    extra.write_text("abab")
    assert statistics(entry(), tokenizer, extra)[0].order.size == 4
    assert statistics(entry("other"), other, extra)[0].tokens.max() <= len(other)


def test_an_extra_folder(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        (tmp_path / "folder" / f"{name}.json").write_text(json.dumps([{"text": name}]))
    (found,) = statistics(entry(), tokenizer, tmp_path / "folder")
    assert texts_of(tokenizer, found) == ["a", "b"]


def test_an_extra_that_cannot_be_read_is_an_error(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(CorpusError, match="there is no such file"):
        require_readable(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="has no files of text"):
        require_readable(tmp_path / "empty")
    (tmp_path / "a.txt").write_text(" ")
    with pytest.raises(CorpusError, match="no usable text"):
        statistics(entry(), tokenizer, tmp_path / "a.txt")


def test_every_token_tells_the_file_that_it_is_of(tmp_path: Path, tokenizer: Any) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.txt"]
    files[0].write_text("the first file")
    files[1].write_text('{"text": "one"}\n{"text": "two"}\n')
    files[2].write_text("the last file")
    add("mine", Reader(files), tokenizer, "tiny", ["."])
    (found,) = statistics(entry(), tokenizer)
    of = {"the first file": files[0], "one": files[1], "two": files[1], "the last file": files[2]}
    start = 0
    for text in texts_of(tokenizer, found):
        end = start + len(tokenizer(text)["input_ids"])
        assert {found.title_at(at) for at in range(start, end)} == {f"{of[text]} (corpus mine)"}
        start = end + 1
    begins = next(corpora_dir().glob("mine/*/begins.json"))
    for damaged in ("no JSON", "[3]"):
        begins.write_text(damaged)
        (again,) = statistics(entry(), tokenizer)
        assert again.title_at(0) == "corpus mine"
    begins.unlink()  # an earlier version wrote it
    (again,) = statistics(entry(), tokenizer)
    assert again.title_at(0) == "corpus mine"
