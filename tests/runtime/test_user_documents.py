"""Texts of one's own beside the chat: added, listed, removed, without a restart."""

import threading
from pathlib import Path

import pytest

from benchmarks.makers.seeds import write_texts
from hierchat.models.load.tokenizer_files import note_tokens, tokens_sha256
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.user_documents import UserDocuments
from hierchat.texts import build
from hierchat.texts.corpora import corpora_dir, files_of
from hierchat.texts.text_files import CorpusError
from tests.testing import tiny_chat as tiny
from tests.testing.waiting import until

pytestmark = pytest.mark.usefixtures("places")


@pytest.fixture
def texts(tmp_path: Path) -> UserDocuments:
    slot = tiny.ready_slot()
    note_tokens(slot.catalogue.entry("tiny"), tokens_sha256(tiny.tokenizer()))
    (tmp_path / "notes.txt").write_text("The lighthouse stands on a rock.")
    return UserDocuments(slot, lambda name: tiny.tokenizer())


def phase(texts: UserDocuments) -> str:
    until(lambda: not texts.busy)
    return texts.addition.phase if texts.addition else "none"


def added(texts: UserDocuments, path: Path) -> None:
    texts.add(str(path))
    assert phase(texts) == "done"


def drafting(slot: ModelSlot) -> list[str]:
    assert slot.model
    return [one.name for one in slot.model.statistics]


def test_what_is_added_drafts_at_once_and_what_is_removed_not(texts: UserDocuments, tmp_path: Path) -> None:
    slot = texts._slot
    before = slot.model
    added(texts, tmp_path / "notes.txt")
    assert drafting(slot) == ["notes"]
    assert slot.model.engine is before.engine  # type: ignore[union-attr]
    (row,) = texts.rows()
    assert (row.name, row.models, row.sources) == ("notes", ("tiny",), (str(tmp_path / "notes.txt"),))
    assert (row.drafts, row.possible, row.tokens) == (True, False, texts.addition.tokens)
    added(texts, tmp_path / "notes.txt")
    assert texts.addition.name == "notes-2"
    texts.stop()
    assert texts.addition is None
    for name in ("notes", "notes-2"):
        texts.remove(name)
    assert drafting(slot) == []
    assert texts.rows() == []
    assert (tmp_path / "notes.txt").exists()


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    folder = tmp_path / "in" / "abc"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("Dear reader")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    return folder


def test_what_is_dropped_lies_with_its_corpus_and_goes_with_it(texts: UserDocuments, dropped: Path) -> None:
    texts.add_files(dropped, "letters")
    assert phase(texts) == "done"
    assert texts.addition
    assert [reason.rsplit(": ", 1)[1] for reason in texts.addition.unread] == ["binary"]
    assert sorted(file.name for file in files_of("letters").iterdir()) == ["letter.txt", "picture.png"]
    assert not dropped.exists()
    texts.remove("letters")
    assert not corpora_dir().joinpath("letters").exists()


def test_stopped_in_the_middle_nothing_stays(
    texts: UserDocuments, dropped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, go_on = held_up(monkeypatch)
    texts.add_files(dropped, "letters")
    with pytest.raises(CorpusError, match="Other texts are being read"):
        texts.add(str(dropped.parent))  # what was dropped may have been taken in by now
    texts.stop()
    go_on.set()
    assert phase(texts) == "none"
    assert texts.rows() == []
    assert not dropped.exists()
    assert not corpora_dir().exists() or not any(corpora_dir().iterdir())


def test_texts_of_another_model_can_be_had_for_this_one(texts: UserDocuments, tmp_path: Path) -> None:
    slot = texts._slot
    added(texts, tmp_path / "notes.txt")
    (build_folder,) = (folder for folder in corpora_dir().glob("notes/*") if folder.is_dir())
    build_folder.rename(build_folder.with_name("0" * 16))  # as of other tokens
    meta = build_folder.with_name("0" * 16) / "meta.json"
    meta.write_text(meta.read_text().replace(tokens_sha256(tiny.tokenizer()), "0" * 64))
    slot.read_texts()
    assert drafting(slot) == []
    (row,) = texts.rows()
    assert (row.drafts, row.possible) == (False, True)
    texts.add_again("notes")
    assert phase(texts) == "done"
    assert drafting(slot) == ["notes"]
    (tmp_path / "notes.txt").unlink()
    build_folder.rename(tmp_path / "elsewhere")
    assert [row.possible for row in texts.rows()] == [False]
    with pytest.raises(CorpusError, match="not there any more"):
        texts.add_again("notes")


def test_a_path_that_is_none_and_a_model_that_was_ejected(texts: UserDocuments, tmp_path: Path) -> None:
    for said, answer in (("", "whole path"), ("notes", "whole path"), ("/none/at/all", "no file or folder")):
        with pytest.raises(CorpusError, match=answer):
            texts.add(said)
        assert texts.addition is None
    slot = texts._slot
    slot.eject()
    until(lambda: not slot.leaving)
    slot.read_texts()
    assert slot.model is None  # it does not come back
    with pytest.raises(CorpusError, match="Load a model first"):
        texts.add(str(tmp_path / "notes.txt"))


def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """No text is tokenised before the second event; the first tells that one is to be."""
    reached, go_on = threading.Event(), threading.Event()
    encode = build.encoded

    def encoded(tokenizer: object, texts: list[str]) -> list[list[int]]:
        reached.set()
        assert go_on.wait(60)
        return encode(tokenizer, texts)

    monkeypatch.setattr(build, "encoded", encoded)
    return reached, go_on


@pytest.mark.parametrize("ejected", [False, True])
def test_texts_that_ship_come_beside_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ejected: bool
) -> None:
    """They are given up with their model."""
    monkeypatch.setattr("hierchat.texts.corpora.seeds_dir", lambda: tmp_path / "seeds")
    write_texts(tmp_path / "seeds" / "another.jsonl.xz", ["The lighthouse stands on a rock."])
    reached, go_on = held_up(monkeypatch)

    def kept() -> list[Path]:
        return list((tmp_path / "CACHE" / "seeds").glob("*/meta.json"))

    slot = tiny.ready_slot()
    assert reached.wait(60)
    if ejected:
        slot.eject()
        until(lambda: not slot.leaving)
        go_on.set()
        with slot._shipped:  # it has given up
            assert slot.model is None
        assert not kept()
        return
    with slot.scheduler.turn() as mine:
        assert mine
        assert drafting(slot) == []
        go_on.set()
        until(kept)
        assert drafting(slot) == []  # a reply in progress keeps its databases
    until(lambda: drafting(slot))
    assert drafting(slot) == ["seed"]
