"""Corpora: added, listed, previewed, removed, fetched from the hub, and what of them drafts for a model."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from filelock import FileLock

from benchmarks.makers.seeds import write_texts
from hierchat.cli.main import main
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer, tokens_sha256
from hierchat.texts import corpora
from hierchat.texts import corpora as module
from hierchat.texts.build import Recipe
from hierchat.texts.corpora import add, corpora_dir, listed, require_readable, statistics, stored_for
from hierchat.texts.previews import preview, sample
from hierchat.texts.text_files import CorpusError, Reader
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.pdfs import pdf

REPLIES = ["The lamp is on.", "The lamp is off.", "Zwölf Boxkämpfer"]


@pytest.fixture
def replies(tmp_path: Path) -> Path:
    path = tmp_path / "replies.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in REPLIES))
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command prints, its exit code first."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = main(["corpus", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def left() -> list[str]:
    """All files and folders where corpora lie."""
    return sorted(str(path.relative_to(corpora_dir())) for path in corpora_dir().rglob("*"))


def test_added_texts_are_there_to_draft(said: Any, replies: Path, tokenizer: Any) -> None:
    code, text = said("add", replies)
    assert code == 0
    (corpus,), wrong = stored_for(tokens_sha256(tokenizer))
    assert not wrong
    assert f"{corpus.order.size} tokens for tiny" in text
    assert isinstance(corpus.tokens, np.memmap)
    ends = np.flatnonzero(corpus.tokens == BREAK)
    assert [tokenizer.decode(ids[ids != BREAK]) for ids in np.split(corpus.tokens, ends)[:-1]] == REPLIES
    # Every position but the breaks, each suffix behind the one before it
    assert sorted(corpus.order) == np.flatnonzero(corpus.tokens != BREAK).tolist()
    text_of = corpus.tokens.tolist()
    suffixes = [text_of[at : text_of.index(BREAK, at)] for at in corpus.order.tolist()]
    assert suffixes == sorted(suffixes)


def test_files_and_folders_become_one_corpus(
    said: Any, replies: Path, tmp_path: Path, tokenizer: Any
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# A note\n")
    (tmp_path / "notes" / "b.txt").write_bytes(b"\0\0")
    code, text = said("add", tmp_path / "notes", replies, "--name", "mine")
    assert code == 0
    assert f"not read: {tmp_path / 'notes' / 'b.txt'}: binary" in text
    (corpus,), _ = stored_for(tokens_sha256(tokenizer))
    assert corpus.name == "mine"
    assert (corpus.tokens == BREAK).sum() == 1 + len(REPLIES)


def test_the_list_says_for_which_models_and_they_are_removed(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert "There are none yet" in said("list")[1]
    said("add", replies)
    assert "There is a corpus replies for this tokenizer." in said("add", replies, "--model", "twin")[1]
    said("add", replies, "--model", "other")
    said("add", replies, "--model", "twin", "--name", "again")
    code, text = said("list")
    lines = [line.split() for line in text.splitlines()[1:]]
    assert code == 0
    assert sorted((line[0], line[1]) for line in lines) == [
        ("again", "3"),
        ("replies", "3"),
        ("replies", "3"),
    ]
    assert "tiny, twin" in text
    assert str(replies) in text
    code, text = said("remove", "replys")
    assert (code, text) == (1, "hierchat: No corpus is called 'replys'. Did you mean replies?\n")
    assert "There are again, replies." in said("remove", "zzz")[1]
    for name in ("replies", "again"):
        assert said("remove", name)[0] == 0
    assert left() == []
    assert "There are none yet." in said("remove", "replies")[1]


def test_replace_builds_anew(said: Any, replies: Path, tokenizer: Any) -> None:
    said("add", replies)
    replies.write_text(json.dumps({"text": "other"}))
    assert said("add", replies, "--replace")[0] == 0
    (corpus,), _ = stored_for(tokens_sha256(tokenizer))
    assert tokenizer.decode(corpus.tokens[:-1]) == "other"
    before = left()
    replies.write_text("")
    assert said("add", replies, "--replace")[0] == 1
    assert left() == before
    (corpus,), _ = stored_for(tokens_sha256(tokenizer))
    assert tokenizer.decode(corpus.tokens[:-1]) == "other"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "There is no usable text (what is there is empty, or has no text in it)"),
        (b" \n \n", "There is no usable text (what is there is empty"),
        (b"\0\1\2", "a.txt: binary). Give files of text"),
    ],
)
def test_nothing_usable_is_one_line_and_leaves_nothing(
    said: Any, tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    code, text = said("add", tmp_path / "a.txt")
    errors = [line for line in text.splitlines() if line.startswith("hierchat: ")]
    assert code == 1
    assert len(errors) == 1
    assert reason in errors[0]
    assert "Traceback" not in text
    assert left() == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.txt"], "nowhere.txt: there is no such file or folder. Check the path."),
        (["REPLIES", "--name", "../x"], "'../x' is no name"),
        (["EMPTY"], "There are no files of text in it. Name the files if their kind is unusual."),
        (["REPLIES", "--name", "seed"], "Give another --name."),
        (["REPLIES", "--name", ""], ""),
        (["REPLIES", "--model", "othre"], "No model is called 'othre'. Did you mean other?"),
        (["hub:nobody"], "'hub:nobody' is no dataset: write hub:owner/name."),
    ],
)
def test_wrong_arguments(said: Any, replies: Path, arguments: list[str], reason: str) -> None:
    empty = replies.with_name("pictures")
    empty.mkdir()
    (empty / "a.png").write_bytes(b"\x89PNG")
    paths = {"REPLIES": str(replies), "EMPTY": str(empty)}
    code, text = said("add", *[paths.get(word, word) for word in arguments])
    if reason:
        assert code == 1
        assert reason in text
        assert left() == []
    else:  # an empty name is none
        assert code == 0
        assert "replies" in text


@pytest.mark.parametrize(
    ("place", "found", "reason"),
    [
        (
            "shutil.disk_usage",
            shutil.disk_usage("/")._replace(free=2**26),
            "has only 67 MB free. Free some space, or add less.",
        ),
        (
            "psutil.virtual_memory",
            psutil.virtual_memory()._replace(available=100),
            "more text than fits into memory",
        ),
    ],
    ids=["disk", "memory"],
)
def test_a_full_disk_or_memory_is_noticed_before_it_is_full(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: Any, reason: str
) -> None:
    monkeypatch.setattr(f"hierchat.texts.build.{place}", lambda *path: found)
    code, text = said("add", replies)
    assert code == 1
    assert reason in text
    assert left() == []


@pytest.mark.parametrize("place", ["hierchat.texts.build.encoded", "hierchat.texts.build.cache.publish"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interruption_leaves_nothing(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: Any
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(place, lambda *arguments: (_ for _ in ()).throw(error))
        code, text = said("add", replies)
    assert left() == []
    if error is KeyboardInterrupt:
        assert code == 130
        assert "Stopped. Nothing was stored." in text
    else:
        assert code == 1
        assert "No space left on device" in text
    assert said("add", replies)[0] == 0


def test_what_a_killed_process_left_is_no_corpus_and_goes(said: Any, replies: Path) -> None:
    parts = [corpora_dir() / name / f"{'0' * 16}.part" for name in ("dead", "alive", "replies")]
    for part in parts:
        part.mkdir(parents=True)
        (part / "tokens.npy").write_bytes(b"half")
    assert "There are none yet" in said("list")[1]
    with FileLock(parts[1].with_suffix(".lock")):
        assert said("add", replies)[0] == 0
    assert [part.exists() for part in parts] == [False, True, False]
    assert not parts[0].parent.exists()


@pytest.mark.parametrize("name", ["meta.json", "tokens.npy", "order.npy"])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete"])
def test_a_damaged_corpus_is_shown_and_can_be_replaced(
    said: Any, replies: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    said("add", replies)
    said("add", replies, "--name", "whole")
    (file,) = corpora_dir().glob(f"replies/*/{name}")
    content = file.read_bytes()
    if damage == "delete":
        file.unlink()
    else:
        middle = len(content) // 2
        file.write_bytes(
            content[:middle] if damage == "cut" else content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
        )
    usable, wrong = stored_for(tokens_sha256(tokenizer))
    if not (name == "meta.json" and damage == "flip"):
        assert [corpus.name for corpus in usable] == ["whole"]
        assert len(wrong) == 1
        assert wrong[0].startswith("The corpus replies is not used: ")
        assert f"damaged: {name}" in said("list")[1]
    assert said("add", replies, "--replace")[0] == 0
    assert len(stored_for(tokens_sha256(tokenizer))[0]) == 2


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
        ("parquet alone", "Datasets in Parquet need `pip install pyarrow`."),
        ("no network", "The hub cannot be reached, so org/tiny cannot be fetched."),
    ],
)
def test_a_dataset_that_cannot_be_had(
    hub: FakeHub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    reason: str,
) -> None:
    if source == "parquet alone":
        hub.files = {"data/train.parquet": b"PAR1"}
        there = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: there(name) if name != "pyarrow" else None
        )
    elif source == "no network":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["corpus", "add", source if source.startswith("hub:") else f"hub:{REPO}"]) == 1
    said = capsys.readouterr().err
    assert "hierchat: " in said
    assert reason in said
    assert listed() == []


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder of texts, and of other things."""
    folder = tmp_path / "notes"
    for inner in ("deep", ".git", "node_modules"):
        (folder / inner).mkdir(parents=True)
    (folder / "a.md").write_text("x" * 1000)
    (folder / "deep" / "b.py").write_text("y" * 3000)
    (folder / "report.pdf").write_bytes(pdf("All of the report"))
    for name in ("one.png", "two.png", ".hidden", ".git/config", "node_modules/lib.js", "Makefile"):
        (folder / name).write_text("not read")
    return folder


def test_what_is_read_and_what_is_not(notes: Path, tokenizer: Any) -> None:
    found = preview([notes], tokenizer)
    assert (found.files, found.closed, found.passed_over) == (3, 1, ())
    assert found.tokens == 4000  # a byte each
    assert found.size == 4000 + (notes / "report.pdf").stat().st_size
    assert found.left_out == {
        ".png files": 2,
        "hidden folders": 1,
        "folders of libraries": 1,
        "hidden files": 1,
        "files without a suffix": 1,
    }
    with pytest.raises(CorpusError, match="no such file or folder"):
        preview([notes / "none"], tokenizer)


def test_tokens_are_roughly_those_that_come(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text("wörter " * (100 + number))
    lines = [json.dumps({"text": "some text " * 20, "id": number}) for number in range(300)]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    found = preview([folder], tokenizer)
    texts = Reader(sorted(folder.iterdir()))
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert 0.7 * tokens < found.tokens < 1.4 * tokens


def test_a_sample_is_of_all_files_and_of_no_closed_one(tmp_path: Path, notes: Path, tokenizer: Any) -> None:
    assert sum(map(len, sample([notes], tokenizer, 10_000))) == 4000
    assert sum(map(len, sample([notes], tokenizer, 700))) == 700
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:02}.txt").write_text(f"{number:02}" * 500)
    read = [tokenizer.decode(ids[:2]) for ids in sample([folder], tokenizer, 5_000)]
    assert read == ["00", "05", "10", "15", "20"]


@pytest.fixture(autouse=True)
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the texts lie that ship."""
    folder = tmp_path / "seeds"
    monkeypatch.setattr(corpora, "seeds_dir", lambda: folder)
    module.warn_once.cache_clear()
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
    add(Recipe(name, Reader([tmp_path / f"{name}.txt"]), tokenizer, "tiny", [f"{name}.txt"]))


def test_seed_stored_and_extra_in_this_order(tmp_path: Path, seeds: Path, tokenizer: Any) -> None:
    pack(seeds, "tiny", ["seed one", "seed two"])
    store(tmp_path, tokenizer, "mine", "my text")
    (tmp_path / "extra.jsonl").write_text('{"text": "extra"}')
    found = statistics(entry(), tokenizer, tmp_path / "extra.jsonl")
    assert [one.name for one in found] == ["seed", "mine", "extra"]
    assert [texts_of(tokenizer, one) for one in found] == [["seed one", "seed two"], ["my text"], ["extra"]]
    assert all(isinstance(one.order, np.memmap) for one in found)
    assert statistics(entry("other"), load_tokenizer(entry("other")))[0].name == "seed"  # tokens of its own
    assert [one.name for one in statistics(entry("twin"), tokenizer)] == ["seed", "mine"]
    without = statistics(entry(), tokenizer, tmp_path / "extra.jsonl", stored=False)
    assert [one.name for one in without] == ["seed", "extra"]


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
    pack(seeds, "tiny", [f"much {number**9}" for number in range(999)])  # more than all others: that alone
    assert len(texts_of(tokenizer, statistics(entry(), tokenizer)[0])) == 999


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
    # A store that another test left may say something meanwhile.
    (line,) = [one.getMessage() for one in caplog.records if one.name == corpora.__name__]
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
    add(Recipe("mine", Reader(files), tokenizer, "tiny", ["."]))
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
