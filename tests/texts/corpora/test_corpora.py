"""Corpora: added, listed, removed, and what of them drafts for a model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from benchmarks import measured_run
from benchmarks.__main__ import main as benchmarks
from benchmarks.makers.seeds import write_texts
from hierchat.cli.main import main
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer, tokens_sha256
from hierchat.runtime import loading as loading_module
from hierchat.runtime.loading import load_served_model
from hierchat.runtime.served_model import ServedModel
from hierchat.texts import corpora
from hierchat.texts.build import Recipe
from hierchat.texts.corpora import add, corpora_dir, require_readable, statistics, stored_for
from hierchat.texts.text_files import CorpusError, TextReader
from tests.testing import tiny_chat as tiny

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


def test_added_texts_are_there_to_draft(said: Any, replies: Path, tmp_path: Path, tokenizer: Any) -> None:
    """Files and folders become one corpus."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# A note\n")
    (tmp_path / "notes" / "b.txt").write_bytes(b"\0\0")
    code, text = said("add", tmp_path / "notes", replies, "--name", "mine")
    assert code == 0
    assert f"not read: {tmp_path / 'notes' / 'b.txt'}: binary" in text
    (corpus,), wrong = stored_for(tokens_sha256(tokenizer))
    assert not wrong
    assert corpus.name == "mine"
    assert f"{corpus.order.size} tokens for tiny" in text
    assert isinstance(corpus.tokens, np.memmap)
    assert texts_of(tokenizer, corpus) == ["# A note\n", *REPLIES]
    # Every position but the breaks, each suffix behind the one before it
    assert sorted(corpus.order) == np.flatnonzero(corpus.tokens != BREAK).tolist()
    text_of = corpus.tokens.tolist()
    suffixes = [text_of[at : text_of.index(BREAK, at)] for at in corpus.order.tolist()]
    assert suffixes == sorted(suffixes)


def test_corpora_are_listed_and_removed(said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for text, code in (("other", 0), ("", 1)):
        replies.write_text(json.dumps({"text": text}))
        assert said("add", replies, "--replace")[0] == code
        (corpus,), _ = stored_for(tokens_sha256(tokenizer))
        assert texts_of(tokenizer, corpus) == ["other"]
    assert [name for name in left() if name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["EMPTY"], "There is no usable text (what is there is empty, or has no text in it)"),
        (["BLANK"], "There is no usable text (what is there is empty"),
        (["BINARY"], "BINARY.txt: binary). Give files of text"),
        (["nowhere.txt"], "nowhere.txt: there is no such file or folder. Check the path."),
        (["REPLIES", "--name", "../x"], "'../x' is no name"),
        (["PICTURES"], "There are no files of text in it. Name the files if their kind is unusual."),
        (["REPLIES", "--name", "seed"], "Give another --name."),
        (["REPLIES", "--model", "othre"], "No model is called 'othre'. Did you mean other?"),
    ],
)
def test_what_cannot_be_added_is_one_line_and_leaves_nothing(
    said: Any, replies: Path, arguments: list[str], reason: str
) -> None:
    paths = {"REPLIES": replies, "PICTURES": replies.with_name("pictures")}
    paths["PICTURES"].mkdir()
    (paths["PICTURES"] / "a.png").write_bytes(b"\x89PNG")
    for name, content in (("EMPTY", b""), ("BLANK", b" \n \n"), ("BINARY", b"\0\1\2")):
        paths[name] = replies.with_name(f"{name}.txt")
        paths[name].write_bytes(content)
    code, text = said("add", *[paths.get(word, word) for word in arguments])
    (error,) = [line for line in text.splitlines() if line.startswith("hierchat: ")]
    assert code == 1
    assert reason in error
    assert "Traceback" not in text
    assert left() == []


def test_full_memory_is_noticed_before_it_is_full(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = SimpleNamespace(available=100)
    monkeypatch.setattr("hierchat.texts.build.psutil.virtual_memory", lambda: few)
    code, text = said("add", replies)
    assert code == 1
    assert "more text than fits into memory" in text
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


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("meta.json", "cut"),
        ("meta.json", "delete"),
        *((name, damage) for name in ("tokens.npy", "order.npy") for damage in ("cut", "alter", "delete")),
    ],
)
def test_a_damaged_corpus_is_said_once_and_can_be_replaced(
    said: Any,
    replies: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: str,
) -> None:
    """The others draft."""
    monkeypatch.setenv("COLUMNS", "300")
    said("add", replies)
    said("add", replies, "--name", "whole")
    (file,) = corpora_dir().glob(f"replies/*/{name}")
    content = file.read_bytes()
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(
            content[: len(content) // 2] if damage == "cut" else content[:-4] + b"\xff\xff\xff\x7f"
        )
    caplog.clear()
    for _ in range(2):
        assert [one.name for one in statistics(entry(), tokenizer)] == ["whole"]
    (line,) = [one.getMessage() for one in caplog.records if one.name == corpora.__name__]
    assert line.startswith("The corpus replies is not used: ")
    assert line.endswith(" Add it again with --replace, or remove it.")
    assert f"damaged: {name}" in said("list")[1]
    assert said("add", replies, "--replace")[0] == 0
    assert len(stored_for(tokens_sha256(tokenizer))[0]) == 2


@pytest.fixture(autouse=True)
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the texts lie that ship."""
    folder = tmp_path / "seeds"
    monkeypatch.setattr(corpora, "seeds_dir", lambda: folder)
    corpora.warn_once.cache_clear()
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
    add(Recipe(name, TextReader([tmp_path / f"{name}.txt"]), tokenizer, "tiny", [f"{name}.txt"]))


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


def test_texts_that_ship_are_read_once(seeds: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ("one", "changed"):
        pack(seeds, "tiny", [content])
        assert statistics(entry(), tokenizer, waits=False) == []
        statistics(entry(), tokenizer)
        with monkeypatch.context() as closed:
            closed.setattr(corpora, "build", None)
            for waits in (True, False):
                (found,) = statistics(entry(), tokenizer, waits=waits)
                assert texts_of(tokenizer, found) == [content]


def test_an_extra_file_is_built_once(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be read is an error."""
    extra, copy = tmp_path / "extra.txt", tmp_path / "copy.txt"
    for content in ("one", "changed"):
        for file in (extra, copy):
            file.write_text(content)
        statistics(entry(), tokenizer, extra)
        with monkeypatch.context() as closed:
            closed.setattr(corpora, "build", None)
            for same in (extra, copy):
                (found,) = statistics(entry(), tokenizer, same)
                assert texts_of(tokenizer, found) == [content]
    other = load_tokenizer(entry("other"))
    extra.write_text("abab")
    assert statistics(entry(), tokenizer, extra)[0].order.size == 4
    assert statistics(entry("other"), other, extra)[0].tokens.max() <= len(other)
    with pytest.raises(CorpusError, match="there is no such file"):
        require_readable(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="has no files of text"):
        require_readable(tmp_path / "empty")
    extra.write_text(" ")
    with pytest.raises(CorpusError, match="no usable text"):
        statistics(entry(), tokenizer, extra)


@pytest.mark.parametrize("trouble", ["empty", "cut", "an end", "an unwritable cache"])
def test_trouble_with_texts_that_ship_only_leaves_a_line(
    seeds: Path,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    pack(seeds, "tiny", ["one " * 500])
    store(tmp_path, tokenizer, "mine", "my text")
    file = seeds / "tiny.jsonl.xz"
    if trouble == "an unwritable cache":
        monkeypatch.setenv("HIERCHAT_CACHE", str(file))
    else:
        file.write_bytes(file.read_bytes()[: {"empty": 0, "cut": 20, "an end": -9}[trouble]])
    assert [one.name for one in statistics(entry(), tokenizer)] == ["mine"]
    # A store that another test left may say something meanwhile.
    (line,) = [one.getMessage() for one in caplog.records if one.name == corpora.__name__]
    assert "that ship are not used" in line


@pytest.fixture
def whole_model(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny` has weights, and the user has added a corpus for it."""
    tiny.model().save_pretrained(places / "models" / "tiny")
    tiny.tokenizer().save_pretrained(places / "models" / "tiny")
    (places / "mine.txt").write_text("The user added this.")
    assert main(["corpus", "add", str(places / "mine.txt")]) == 0


@pytest.mark.usefixtures("whole_model")
@pytest.mark.parametrize("command", [["decode", "--arms", "vanilla,hierchat"], ["verify"]])
def test_a_measurement_has_what_it_asks(
    places: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    seen: list[ServedModel] = []

    def loading(*arguments: Any, **named: Any) -> ServedModel:
        seen.append(load_served_model(*arguments, **named))
        return seen[-1]

    place = loading_module if command == ["verify"] else measured_run
    monkeypatch.setattr(place, "load_served_model", loading)
    (places / "questions.jsonl").write_text(json.dumps({"turns": ["what?"]}))
    (places / "extra.md").write_text("Extra text.")
    fixed = ["--questions", str(places / "questions.jsonl"), "--json", str(places / "out.json")]
    run = main if command == ["verify"] else benchmarks
    assert run([*command, *fixed, "--max-new-tokens", "4"]) == 0
    assert run([*command, *fixed, "--max-new-tokens", "4", "--corpus", str(places / "extra.md")]) == 0
    assert [[one.name for one in served.statistics] for served in seen] == [[], ["extra"]]
    (extra,) = seen[1].statistics
    assert tiny.tokenizer().decode(extra.tokens[:-1]) == "Extra text."
    assert np.count_nonzero(extra.tokens == BREAK) == 1
    assert json.loads((places / "out.json").read_text())["settings"]["corpus"] == str(places / "extra.md")
