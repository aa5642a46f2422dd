"""Models that the user names: a folder, a GGUF file, a repository of the hub."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from hierchat.cli.main import main
from hierchat.config import models_dir
from hierchat.models.catalogue import Gguf, Hub, Mirror, ModelEntry, ModelSource, read_catalogue
from hierchat.models.device_memory import needs_of_blocks
from hierchat.models.load.add import (
    add,
    add_model,
    chosen,
    differences,
    free_name,
    on_hub,
    own_file,
    own_names,
    remove_model,
    set_drafts,
)
from hierchat.models.load.check import expected_step, fit, refusal, require_worth_fetching
from hierchat.models.progress import (
    BrokenFileError,
    CatalogueError,
    MissingError,
    ModelError,
    OfflineError,
    UnsupportedError,
)
from tests.testing.architectures import CONFIGS, model_of, write_gguf
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.tiny_files import tiny_tokenizer


def added(said: str) -> ModelEntry:
    name, new = add(said, read_catalogue())
    assert new
    assert add(said, read_catalogue()) == (name, False)  # one file is one model
    return read_catalogue().entry(name)


def test_a_path_is_one_model_however_it_is_named(tiny_gguf: Path, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    shutil.copy(tiny_gguf, folder / "tiny.gguf")
    (tmp_path / "link.gguf").symlink_to(tiny_gguf)
    around = tiny_gguf.parent / ".." / tiny_gguf.parent.name / tiny_gguf.name
    several = ((tiny_gguf, tmp_path / "link.gguf", around), (tiny_folder,), (folder, folder / "tiny.gguf"))
    names = [{chosen(str(path), read_catalogue()) for path in (*paths, *paths)} for paths in several]
    assert [len(found) for found in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3
    assert set.union(*names) <= set(read_catalogue().models)


def test_what_ships_is_found_by_its_repository() -> None:
    shipped = read_catalogue()
    asked = {
        "Qwen/Qwen3-0.6B": ModelSource(hub=Hub(repo="qwen/qwen3-0.6b")),
        "its file": ModelSource(gguf=Gguf(repo="Qwen/Qwen3-0.6B-GGUF", file="Qwen3-0.6B-Q8_0.gguf")),
    }
    assert {shipped.name_of(source) for source in asked.values()} == {"qwen3-0.6b"}
    assert shipped.name_of(ModelSource(gguf=Gguf(repo="Qwen/Qwen3-0.6B-GGUF", file="other.gguf"))) == ""


def test_every_command_takes_a_path(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("hierchat.cli.serve.serve", lambda flags, model, backend: asked.append(model) or 0)
    monkeypatch.setattr("hierchat.cli.interactive.run", lambda flags: asked.append(flags.model) or 0)
    path = str(tiny_gguf)
    assert main(["--model", path]) == main(["chat", "hello", "--model", path]) == 0
    assert main(["chat", "hello", "--model", path, "--url", "http://127.0.0.1:1"]) == 0
    assert asked == ["tiny.q8_0", "tiny.q8_0", path]  # a server's models are called as it likes


def test_what_names_no_path_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a folder here is called like a model of the catalogue."""
    name = read_catalogue().default
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    assert chosen(name, read_catalogue()) == name
    assert chosen("nobody", read_catalogue()) == "nobody"
    with pytest.raises(MissingError, match="Check the path"):
        chosen("./nowhere.gguf", read_catalogue())


def test_a_gguf_file_and_a_folder_by_their_paths(tiny_gguf: Path, tiny_folder: Path) -> None:
    entry = added(f' "{tiny_gguf}" ')
    assert (entry.name, entry.source.gguf and entry.source.gguf.path) == ("tiny.q8_0", tiny_gguf)
    assert (entry.size.embeddings, entry.size.slot) == (272 * 64, 2 * 2 * 2 * 16)
    assert entry.context_length == 256
    assert fit(entry, "cpu").verdict == "yes"
    assert refusal(entry, "cpu") == ""
    folder = added(str(tiny_folder))
    assert (folder.name, folder.blocks, bool(folder.source.folder)) == (
        "tiny",
        8,
        True,
    )  # packed for the engine


def test_a_gguf_file_with_experts(tmp_path: Path) -> None:
    model = model_of(CONFIGS["qwen3 moe"], vocab_size=272)
    path = write_gguf(model, tmp_path / "several.gguf", tiny_tokenizer(extra=("ab",)))
    entry = added(str(path))
    assert entry.size.parameters - entry.size.active == 3 * 9 * 3 * 32 * 64  # layers, asleep, matrices
    assert entry.size.read == entry.size.active / entry.size.parameters < 0.8
    assert (entry.kind, expected_step(entry, "cpu")) == ("qwen3_moe", "kernels")
    assert fit(entry, "cpu").needed == needs_of_blocks(path.stat().st_size, entry.size.slot).total(512)


def test_a_gguf_file_whose_layers_have_inputs(tmp_path: Path) -> None:
    """A token uses one row of what their inputs are looked up in."""
    model = model_of(CONFIGS["gemma4"], vocab_size=272)
    path = write_gguf(model, tmp_path / "inputs.gguf", tiny_tokenizer(extra=("ab",)))
    entry = added(str(path))
    assert entry.size.parameters - entry.size.active == 300 * 6 * 32
    assert entry.size.looked_up == 300 * 6 * 32
    held = int(path.stat().st_size * entry.size.held)
    assert fit(entry, "cpu").needed == needs_of_blocks(held, entry.size.slot).total(512)
    assert entry.size.embeddings == 272 * 64 + 300 * 6 * 32
    assert entry.size.slot == 2 * (2 * 2 * 16 + 2 * 32)  # two layers with a window and one without, of six
    assert (entry.kind, expected_step(entry, "cpu")) == ("gemma4_text", "kernels")


def test_a_dropped_file_by_its_name(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    models_dir().mkdir(parents=True)
    (models_dir() / "dropped.gguf").write_bytes(tiny_gguf.read_bytes())
    entry = added("dropped.gguf")
    assert entry.source.gguf.path == models_dir() / "dropped.gguf"


def test_what_cannot_run_is_refused_and_not_added(tiny_folder: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tiny_folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(
        UnsupportedError,
        match=r"tiny cannot run here\. It is a model of the kind bert, and it is made to fill",
    ):
        add(str(tiny_folder), read_catalogue())
    (tmp_path / "half.gguf").write_bytes(b"GGUF and no more")
    with pytest.raises(BrokenFileError, match=r"half\.gguf is no whole GGUF file"):
        add(str(tmp_path / "half.gguf"), read_catalogue())
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(UnsupportedError, match=r"notes\.txt is no GGUF file"):
        add(str(tmp_path / "notes.txt"), read_catalogue())
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match=r"it has no config\.json"):
        add(str(tmp_path / "empty"), read_catalogue())
    assert not own_file().exists()


@pytest.mark.parametrize("said", ["", "  ", "nonsense", "a/b/c/d", "/no/such/file.gguf", "~nobody/x", "\0"])
def test_what_names_nothing_gets_a_sentence(said: str) -> None:
    with pytest.raises(ModelError, match=r"[A-Z/~n\0].* .*\."):
        add(said, read_catalogue())


@pytest.mark.parametrize("said", [REPO, f"https://huggingface.co/{REPO}", f"hf.co/{REPO}/"])
def test_a_repository_of_safetensors(hub: FakeHub, said: str) -> None:
    entry = added(said)
    assert (entry.name, entry.source.hub.repo, entry.blocks) == ("tiny", REPO, 8)
    assert not [path for _, path, _ in hub.asked if path.endswith(".safetensors")]  # nothing is fetched yet


def test_of_several_gguf_files_one_is_taken_by_its_head_alone(hub: FakeHub, tiny_gguf: Path) -> None:
    body = tiny_gguf.read_bytes()
    hub.files = {"t-f16.gguf": body, "t-Q4_K_M.gguf": body, "t-Q4_0-00001-of-00002.gguf": body}
    entry = added(REPO)
    assert (entry.name, entry.source.gguf.file) == ("t-q4_k_m", "t-Q4_K_M.gguf")
    assert entry.size
    assert added(f"{REPO}/blob/main/t-f16.gguf").source.gguf.file == "t-f16.gguf"  # type: ignore[union-attr]


def test_the_head_tells_that_it_cannot_run_before_anything_is_fetched(hub: FakeHub, tiny_gguf: Path) -> None:
    body = tiny_gguf.read_bytes().replace(b"llama", b"mamba")
    hub.files = {"t.gguf": body}
    with pytest.raises(UnsupportedError, match=r"t\.gguf cannot run here"):
        add(REPO, read_catalogue())
    entry = ModelEntry(name="t", source=ModelSource(gguf=Gguf(repo=REPO, file="t.gguf")))
    with pytest.raises(UnsupportedError, match="t cannot run here"):
        require_worth_fetching(entry, "cpu")
    assert not list(Path(own_file().parent.parent).rglob("*.gguf"))


def test_without_the_hub_nothing_is_added_and_a_mirror_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="The hub cannot be reached"):
        add(REPO, read_catalogue())
    mirror = Mirror(package="p{}", version="1", file="f{}", pieces=1, size=9, sha256="0" * 64)
    source = ModelSource(gguf=Gguf(repo=REPO, file="t.gguf", mirror=mirror))
    require_worth_fetching(ModelEntry(name="t", source=source), "cpu")


def test_missing_and_gated_repositories(hub: FakeHub, tiny_gguf: Path) -> None:
    with pytest.raises(MissingError, match="There is no public repository org/other"):
        add("org/other", read_catalogue())
    hub.files, hub.gated = {"t.gguf": tiny_gguf.read_bytes()}, True
    with pytest.raises(ModelError, match="gated"):
        add(REPO, read_catalogue())
    hub.files, hub.gated = {"README.md": b""}, False
    with pytest.raises(UnsupportedError, match="neither safetensors nor a GGUF file"):
        add(REPO, read_catalogue())


# The catalogue against a hub: what is otherwise there is said, and no weights are fetched


@pytest.fixture
def both(hub: FakeHub, tiny_gguf: Path) -> FakeHub:
    hub.files["tiny.Q8_0.gguf"] = tiny_gguf.read_bytes()
    return hub


def named(source: dict[str, Any] | None = None, **fields: Any) -> ModelEntry:
    parts = {"name": "tiny", "source": source or {"hub": {"repo": REPO}}, "kind": "llama"}
    return ModelEntry.model_validate({**parts, **fields})


SLOT = 2 * 2 * 2 * 16
PARAMETERS = 272 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def size(**changed: int) -> dict[str, int]:
    return {"parameters": PARAMETERS, "slot": SLOT} | changed


def test_what_agrees_says_nothing(both: FakeHub) -> None:
    assert list(differences(named(size=size()))) == []
    gguf = {"gguf": {"repo": REPO, "file": "tiny.Q8_0.gguf"}}
    assert list(differences(named(cpu=gguf, size=size()))) == []
    whole = len(both.files["model.safetensors"])
    ranges = [asked for _, path, asked in both.asked if path.endswith("model.safetensors")]
    assert all(asked and int(asked.split("-")[1]) < whole - 1 for asked in ranges)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "qwen3"}, "of the kind llama; the catalogue says qwen3"),
        ({"size": size(parameters=7)}, f"has {PARAMETERS:,} parameters; the catalogue says 7"),
        ({"size": size(slot=1)}, f"keeps {SLOT:,} numbers a position; the catalogue says 1"),
        ({"source": {"hub": {"repo": "org/gone"}}}, "no public repository org/gone"),
        ({"source": {"gguf": {"repo": REPO, "file": "gone.gguf"}}}, "GGUF"),
    ],
)
def test_what_differs_is_said(both: FakeHub, fields: dict[str, Any], said: str) -> None:
    both.files.setdefault("gone.gguf", b"no model")
    assert any(said in sentence for sentence in differences(named(**fields)))


def test_of_a_model_that_sees_texts_alone_count(both: FakeHub) -> None:
    text = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "head_dim": 4}
    windows = ["sliding_attention", "full_attention"]
    config = {"model_type": "gemma4", "text_config": text | {"layer_types": windows, "global_head_dim": 6}}
    names = ("model.language_model.norm.weight", "lm_head.weight", "model.vision_tower.norm.weight")
    told = {name: {"dtype": "BF16", "shape": [7], "data_offsets": [0, 14]} for name in names}
    head = json.dumps(told).encode()
    both.files |= {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": struct.pack("<Q", len(head)) + head + bytes(42),
    }
    agreed = {"parameters": 14, "slot": 2 * 2 * (4 + 6)}
    assert list(differences(named(kind="gemma4", size=agreed))) == []
    (said,) = differences(named(kind="gemma4", size=agreed | {"slot": 3}))
    assert "keeps 40 numbers a position" in said


def test_the_command(both: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "models.yaml"
    said = f"models:\n  tiny: {{source: {{hub: {{repo: {REPO}}}}}, kind: KIND}}\n"
    file.write_text(said.replace("KIND", "llama"))
    assert main(["models", "check", "tiny"]) == 0
    assert "tiny: as on the hub" in capsys.readouterr().out
    file.write_text(said.replace("KIND", "mistral"))
    assert main(["models", "check", "tiny"]) == 1
    assert "the catalogue says mistral" in capsys.readouterr().out


def test_without_a_hub_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["models", "check"]) == 1
    assert "The hub cannot be reached" in capsys.readouterr().err


def test_which_come_from_the_hub() -> None:
    models = read_catalogue().models
    assert on_hub(models["qwen3-0.6b"])
    assert not on_hub(models["smollm2-135m"])


# The user's own models.yaml, as the page writes it.


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
