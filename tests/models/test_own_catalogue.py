"""The user's own models.yaml, as the page writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.add import add_model, free_name, own_file, own_names, remove_model, set_drafts
from hierchat.models.progress import CatalogueError

FIELDS = {"source": {"gguf": {"path": "/models/My model: 7B #1.gguf"}}, "context_length": 4096}
BEFORE = """# mine
models:
    first:  # a comment
        source: {folder: {path: one}}

    # about the second
    second: {source: {folder: {path: two}}}
"""


def write(text: str) -> None:
    own_file().parent.mkdir(parents=True, exist_ok=True)
    own_file().write_text(text)


@pytest.mark.parametrize(
    "before", ["", "# nothing yet", "models: {}\n", "models:\n", BEFORE, BEFORE.rstrip()]
)
def test_what_is_added_is_read_and_can_be_removed(before: str) -> None:
    if before:
        write(before)
    names = own_names()
    add_model("it.7b", FIELDS)
    entry = read_catalogue().entry("it.7b")
    assert entry.source.gguf is not None
    assert str(entry.source.gguf.path) == "/models/My model: 7B #1.gguf"
    assert entry.context_length == 4096
    assert own_names() == names | {"it.7b"}
    remove_model("it.7b")
    assert own_names() == names
    assert "it.7b" not in read_catalogue().models


def test_everything_else_stays_as_it_is() -> None:
    write(BEFORE)
    add_model("third", FIELDS)
    assert own_file().read_text().startswith(BEFORE)
    remove_model("third")
    assert own_file().read_text() == BEFORE
    remove_model("first")
    assert own_file().read_text() == BEFORE.replace(
        "    first:  # a comment\n        source: {folder: {path: one}}\n\n", ""
    )
    remove_model("second")
    assert own_names() == set()
    assert "smollm2-135m" in read_catalogue().models


def test_what_would_break_the_file_is_not_written() -> None:
    text = "models: {first: {source: {folder: {path: one}}}, second: {source: {folder: {path: two}}}}\n"
    write(text)
    with pytest.raises(CatalogueError, match="was left as it is"):
        add_model("third", FIELDS)
    with pytest.raises(CatalogueError, match="stands on one line with others"):
        remove_model("first")
    assert own_file().read_text() == text
    write(BEFORE)
    with pytest.raises(CatalogueError, match=r"was left as it is.*models\.yaml:\d+: model 'third'"):
        add_model("third", {"source": {}})
    assert own_file().read_text() == BEFORE
    assert {file.name for file in own_file().parent.iterdir()} == {"models.yaml"}


def test_a_draft_of_another_model_is_not_removed_alone() -> None:
    write(
        "models:\n  small: {source: {folder: {path: a}}}\n  large: {source: {folder: {path: b}}, drafts: [small]}\n"
    )
    with pytest.raises(CatalogueError, match="no model is called 'small'"):
        remove_model("small")


def test_names_are_free_and_plain(tmp_path: Path) -> None:
    catalogue = read_catalogue()
    assert free_name("Qwen3-0.6B-Q8_0.GGUF", catalogue) == "qwen3-0.6b-q8_0"
    assert free_name("qwen3-0.6b", catalogue) == "qwen3-0.6b-2"
    assert free_name("Ein Modell (1).gguf", catalogue) == "ein-modell-1"
    assert free_name("...", catalogue) == "model"


DRAFTS = """models:
  one:
    source: {folder: {path: one}}
    # which draft
    drafts:
      - two
    licence: MIT

  # the second
  two:
    source: {folder: {path: two}}
  three: {source: {folder: {path: three}}}
"""


def test_draft_models_are_noted_and_all_else_stays() -> None:
    write(DRAFTS)
    set_drafts("one", ["three", "two"])
    assert own_file().read_text() == DRAFTS.replace("drafts:\n      - two", "drafts: [three, two]")
    set_drafts("one", [])
    assert read_catalogue().entry("one").drafts == ()
    set_drafts("two", ["three"])
    assert (
        "  two:\n    source: {folder: {path: two}}\n    drafts: [three]\n  three:" in own_file().read_text()
    )
    with pytest.raises(CatalogueError, match="three stands on one line with its fields"):
        set_drafts("three", ["two"])
    with pytest.raises(CatalogueError, match=r"left as it is.*no model is called 'four'"):
        set_drafts("one", ["four"])
    assert read_catalogue().entry("two").drafts == ("three",)


def test_a_model_that_ships_gets_draft_models_and_is_nobodys_own() -> None:
    name = read_catalogue().default
    add_model("small", FIELDS)
    set_drafts(name, ["small"])
    assert read_catalogue().entry(name).drafts == ("small",)
    assert read_catalogue().entry(name).source.wheel
    assert own_names() == {"small"}
    with pytest.raises(CatalogueError, match="no model is called 'small'"):
        remove_model("small")
    set_drafts(name, [])
    remove_model("small")
    assert own_names() == set()


def test_at_the_end_of_a_file_without_a_line_break() -> None:
    write("models:\n  one:\n    source: {folder: {path: one}}\n  two:\n    source: {folder: {path: two}}")
    set_drafts("two", ["one"])
    assert read_catalogue().entry("two").drafts == ("one",)
