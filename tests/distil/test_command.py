"""python -m hierchat distil: a draft out of one's own conversations, and what it is refused for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hierchat.engine.cpu.runner  # noqa: F401  # before the cache moves, so that it is compiled once
from hierchat.cli import main
from hierchat.config import shipped
from hierchat.distil import train
from hierchat.distil.command import RECORD
from hierchat.distil.text import WINDOW
from hierchat.engine.backends import make_runner
from hierchat.engine.fewer_tokens import FewerTokens
from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.formats.draft_vocabulary import FILE, read_known
from hierchat.models.load.load import load
from hierchat.models.load.load_torch import load_torch
from hierchat.models.load.token_map import same_tokens
from hierchat.store import Store

from ..chat.tiny import CONTEXT, END, model, tokenizer
from .test_text import reply

MINUTES = "0.02"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache, data and catalogue of each test's own, with a tiny model in it."""
    for name in ("cache", "config", "data"):
        monkeypatch.setenv(f"HIERCHAT_{name.upper()}", str(tmp_path / name))
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    (tmp_path / "config").mkdir()
    own = {"tiny": {"source": {"folder": {"path": str(tmp_path / "tiny")}}}}
    (tmp_path / "config" / "models.yaml").write_text(yaml.safe_dump({"models": own}))
    return tmp_path


@pytest.fixture
def database(places: Path) -> Path:
    """Someone to whom the tiny model has said enough."""
    path = places / "history.db"
    key = load_torch(read_catalogue().entry("tiny"), "cpu", backend="float32").model_key
    once = np.random.default_rng(0).permutation(np.arange(10, 60))
    with Store.open(path) as store:
        for length in (5, 6):
            reply(store, store.ensure_user("ann"), key, [*np.resize(once, length * WINDOW).tolist(), END])
    return path


def distil(folder: Path, *more: str | Path) -> int:
    return main(["distil", str(folder), "--model", "tiny", "--minutes", MINUTES, *map(str, more)])


def with_snippet(places: Path, printed: str) -> tuple[dict[str, Any], Catalogue]:
    """What was said to put into models.yaml, and the catalogue with it."""
    said = printed[printed.index("models:\n") :]
    (places / "more.yaml").write_text(said)
    files = [shipped("models.yaml"), places / "config" / "models.yaml", places / "more.yaml"]
    return yaml.safe_load(said)["models"], read_catalogue(files)


def test_a_draft_from_ones_own_conversations(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = places / "small"
    assert distil(folder, "--history", "--db", database, "--tokens", 40) == 0
    files = {file.name for file in folder.iterdir()}
    assert files >= {"config.json", "model.safetensors", "tokenizer.json", FILE, RECORD}
    assert train.CHECKPOINT not in files
    record = json.loads((folder / RECORD).read_text())
    assert (record["target"], record["layers"], record["tokens"]) == ("tiny", 1, 40)
    assert (
        record["text_tokens"] == 11 * WINDOW + 2 + 4
    )  # with two ends and a BREAK around each reply and pack
    assert record["measured"][-1][0] == record["steps"] > 0
    known = read_known(folder)
    assert known is not None
    assert len(known) == 40
    assert END in known

    printed = capsys.readouterr().out
    assert f"{folder}: " in printed
    said, catalogue = with_snippet(places, printed)
    assert list(said) == ["small", "tiny"]
    entry = catalogue.entry("small")
    assert (entry.draft_only, entry.blocks) == (True, 8)
    assert catalogue.entry("tiny").drafts == ("small",)
    draft, target = load(entry, "cpu"), load(catalogue.entry("tiny"), "cpu")
    assert (draft.backend, draft.context_length) == ("blocks", CONTEXT)
    assert same_tokens(target.tokenizer, draft.tokenizer) is None
    whole = FewerTokens(make_runner(draft).open(), known, len(tokenizer()))
    row = whole.forward([int(known[3])], [-1])[0]
    assert np.isfinite(row).all()
    assert int(row.argmax()) in known


def test_an_interrupted_run_says_so_and_goes_on(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(student: Any, optimiser: Any, learned: Any, step: int, *more: Any) -> float:
        if step == 2:
            raise KeyboardInterrupt
        return one_step(student, optimiser, learned, step, *more)

    one_step = train._step
    with monkeypatch.context() as patch:
        patch.setattr(train, "_step", interrupted)
        assert distil(places / "small", "--history", "--db", database) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [file.name for file in (places / "small").iterdir()] == [train.CHECKPOINT]
    first: list[int] = []
    monkeypatch.setattr(train, "_step", lambda *given: first.append(given[3]) or one_step(*given))
    assert distil(places / "small", "--history", "--db", database) == 0
    assert first[0] == 2


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("a b, c: {d}", "a-b-c-d-"),
        ("tiny", "tiny-draft"),
        ("12", "12"),
        ("über", "über"),
        ("sub/..", None),
    ],
)
def test_whatever_the_folder_is_called_the_snippet_can_be_read(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str], folder: str, name: str | None
) -> None:
    place = places / "drafts" / folder
    assert distil(place, "--history", "--db", database, "--minutes", "0") == 0
    said, catalogue = with_snippet(places, capsys.readouterr().out)
    draft = catalogue.entry(name or "drafts")
    assert draft.source.folder
    assert draft.source.folder.path.samefile(place)
    assert catalogue.entry("tiny").drafts == (draft.name,)
    assert len(said) == 2


def test_a_draft_that_is_listed_already_is_not_listed_twice(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--history", "--db", database, "--minutes", "0")
    assert distil(places / "small", *arguments) == 0
    own = yaml.safe_load((places / "config" / "models.yaml").read_text())["models"]
    said, _ = with_snippet(places, capsys.readouterr().out)
    own["tiny"] |= said.pop("tiny")
    (places / "config" / "models.yaml").write_text(yaml.safe_dump({"models": own | said}))
    assert distil(places / "small", *arguments) == 0
    assert with_snippet(places, capsys.readouterr().out)[1].entry("tiny").drafts == ("small",)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What is said of it."""
    assert main(["distil", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err.replace("\n", " ")


def test_a_database_that_is_not_there(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = places / "nowhere.db"
    said = refused(capsys, places / "small", "--model", "tiny", "--history", "--db", path)
    assert f"hierchat: There is no database {path}. Name it with --db" in said
    assert not path.exists()


def test_a_database_of_several_people(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(database) as store:
        store.ensure_user("bob")
    said = refused(capsys, places / "small", "--model", "tiny", "--history", "--db", database)
    assert "Several people use this database" in said


@pytest.mark.parametrize("history", [False, True])
def test_too_little_text(places: Path, capsys: pytest.CaptureFixture[str], history: bool) -> None:
    Store.open(places / "empty.db").close()
    more = ["--history", "--db", places / "empty.db"] if history else []
    said = refused(capsys, places / "small", "--model", "tiny", *more)
    assert "hierchat: The model has written 1 tokens here" in said
    assert "give --history" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--model", "tinny"), "Did you mean tiny"),
        (("--model", "tiny", "--layers", "3"), "The target has 2 layers"),
        (("--model", "tiny", "--tokens", "0"), "give --tokens 1 or more"),
    ],
)
def test_wrong_arguments(
    places: Path, database: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
) -> None:
    said = refused(capsys, places / "small", *arguments, "--history", "--db", database)
    assert why in said
