"""`corpus add | list | remove`, as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from filelock import FileLock

from hierchat.cli.main import main
from hierchat.drafting.suffix_index import BREAK
from hierchat.models.load.tokenizer_files import tokens_sha256
from hierchat.texts.corpora import corpora_dir, stored_for

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


def test_list_says_for_which_models(said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert "There are none yet" in said("list")[1]
    said("add", replies)
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


def test_models_with_the_same_tokens_share_a_corpus(said: Any, replies: Path) -> None:
    said("add", replies)
    code, text = said("add", replies, "--model", "twin")
    assert code == 1
    assert "There is a corpus replies for this tokenizer. Give another --name, or --replace" in text
    assert said("add", replies, "--model", "other")[0] == 0
    assert len({path.name for path in corpora_dir().glob("replies/*/")}) == 2


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


def test_remove(said: Any, replies: Path) -> None:
    assert "There are none yet." in said("remove", "replies")[1]
    said("add", replies)
    said("add", replies, "--model", "other")
    code, text = said("remove", "replys")
    assert (code, text) == (1, "hierchat: No corpus is called 'replys'. Did you mean replies?\n")
    assert "There are replies." in said("remove", "zzz")[1]
    assert said("remove", "replies")[0] == 0
    assert left() == []


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


def test_a_folder_with_nothing_readable(said: Any, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"\x89PNG")
    code, text = said("add", tmp_path / "pictures")
    assert code == 1
    assert "There are no files of text in it. Name the files if their kind is unusual." in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.txt"], "nowhere.txt: there is no such file or folder. Check the path."),
        (["REPLIES", "--name", "../x"], "'../x' is no name"),
        (["REPLIES", "--name", "seed"], "Give another --name."),
        (["REPLIES", "--name", ""], ""),
        (["REPLIES", "--model", "othre"], "No model is called 'othre'. Did you mean other?"),
        (["hub:nobody"], "'hub:nobody' is no dataset: write hub:owner/name."),
    ],
)
def test_wrong_arguments(said: Any, replies: Path, arguments: list[str], reason: str) -> None:
    code, text = said("add", *[str(replies) if word == "REPLIES" else word for word in arguments])
    if reason:
        assert code == 1
        assert reason in text
        assert left() == []
    else:  # an empty name is none
        assert code == 0
        assert "replies" in text


def test_a_full_disk_is_noticed_before_it_is_full(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=2**26)
    monkeypatch.setattr("hierchat.texts.build.shutil.disk_usage", lambda path: usage)
    code, text = said("add", replies)
    assert code == 1
    assert "has only 67 MB free. Free some space, or add less." in text
    assert left() == []


def test_too_much_for_memory(said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr("hierchat.texts.build.psutil.virtual_memory", lambda: memory)
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


def test_the_program_writes_nothing_where_it_may_not(
    said: Any, replies: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "file"))
    code, text = said("add", replies)
    assert code == 1
    assert "HIERCHAT_DATA" in text
