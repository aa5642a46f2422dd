"""Models that the user names: a folder, a GGUF file, a repository of the hub."""

import shutil
from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.models.catalogue import Gguf, Mirror, ModelEntry, ModelSource, read_catalogue
from hierchat.models.device_memory import needs_of_blocks
from hierchat.models.load.add import (
    add,
    add_model,
    chosen,
    free_name,
    own_file,
    own_names,
    remove_model,
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
from tests.testing.tiny_files import change_config, tiny_tokenizer

SLOT = 2 * 2 * 2 * 16


def added(said: str) -> ModelEntry:
    name, new = add(said, read_catalogue())
    assert new
    assert add(said, read_catalogue()) == (name, False)  # one file is one model
    return read_catalogue().entry(name)


def test_what_ships_is_found_by_its_repository() -> None:
    shipped = read_catalogue()
    for source, name in (
        ({"hub": {"repo": "qwen/qwen3-0.6b"}}, "qwen3-0.6b"),
        ({"gguf": {"repo": "Qwen/Qwen3-0.6B-GGUF", "file": "Qwen3-0.6B-Q8_0.gguf"}}, "qwen3-0.6b"),
        ({"gguf": {"repo": "Qwen/Qwen3-0.6B-GGUF", "file": "other.gguf"}}, ""),
    ):
        assert shipped.name_of(ModelSource.model_validate(source)) == name


def test_every_command_takes_a_path(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("hierchat.cli.serve.serve", lambda flags, model, backend: asked.append(model) or 0)
    monkeypatch.setattr("hierchat.cli.terminal.run", lambda flags: asked.append(flags.model) or 0)
    path = str(tiny_gguf)
    assert main(["--model", path]) == main(["chat", "hello", "--model", path]) == 0
    assert asked == ["tiny.q8_0", "tiny.q8_0"]


def test_what_names_no_path_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a folder here is called like a model of the catalogue."""
    name = read_catalogue().default
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    assert chosen(name, read_catalogue()) == name
    assert chosen("nobody", read_catalogue()) == "nobody"
    with pytest.raises(MissingError, match="Check the path"):
        chosen("./nowhere.gguf", read_catalogue())


def test_a_path_is_one_model_however_it_is_named(tiny_gguf: Path, tiny_folder: Path, tmp_path: Path) -> None:
    entry, folder = added(f' "{tiny_gguf}" '), added(str(tiny_folder))
    assert (entry.name, entry.source.gguf and entry.source.gguf.path) == ("tiny.q8_0", tiny_gguf)
    assert (entry.size.embeddings, entry.size.slot, entry.context_length) == (272 * 64, SLOT, 256)
    assert (fit(entry, "cpu").verdict, refusal(entry, "cpu")) == ("yes", "")
    assert (folder.name, folder.blocks) == ("tiny", 8)  # packed for the engine
    assert folder.source.folder
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(tiny_gguf, alone / "tiny.gguf")
    (tmp_path / "link.gguf").symlink_to(tiny_gguf)
    around = tiny_gguf.parent / ".." / tiny_gguf.parent.name / tiny_gguf.name
    several = ((tiny_gguf, tmp_path / "link.gguf", around), (tiny_folder,), (alone, alone / "tiny.gguf"))
    names = [{chosen(str(path), read_catalogue()) for path in (*paths, *paths)} for paths in several]
    assert [len(found) for found in names] == [1, 1, 1]
    assert names[:2] == [{entry.name}, {folder.name}]
    assert names[2].isdisjoint({entry.name, folder.name})


def test_gguf_files_with_experts_and_with_inputs_of_layers(tmp_path: Path) -> None:
    """A token uses some experts, and one row of what the inputs of layers are looked up in."""
    paths = [
        write_gguf(
            model_of(CONFIGS[name], vocab_size=272), tmp_path / f"{name}.gguf", tiny_tokenizer(extra=("ab",))
        )
        for name in ("qwen3 moe", "gemma4")
    ]
    experts, inputs = (added(str(path)) for path in paths)
    assert experts.size.parameters - experts.size.active == 3 * 9 * 3 * 32 * 64  # layers, asleep, matrices
    assert experts.size.read == experts.size.active / experts.size.parameters < 0.8
    assert inputs.size.parameters - inputs.size.active == inputs.size.looked_up == 272 * 6 * 32
    assert inputs.size.embeddings == 272 * 64 + 272 * 6 * 32
    assert inputs.size.slot == 2 * (2 * 2 * 16 + 2 * 32)  # two layers with a window and one without, of six
    held = [paths[0].stat().st_size, int(paths[1].stat().st_size * inputs.size.held)]
    for entry, kind, size in zip((experts, inputs), ("qwen3_moe", "gemma4_text"), held, strict=True):
        assert (entry.kind, expected_step(entry, "cpu")) == (kind, "kernels")
        assert fit(entry, "cpu").needed == needs_of_blocks(size, entry.size.slot).total(512)


def test_what_cannot_run_is_refused_and_not_added(tiny_folder: Path, tmp_path: Path) -> None:
    change_config(tiny_folder, model_type="bert")
    (tmp_path / "half.gguf").write_bytes(b"GGUF and no more")
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    for path, error, said in (
        (tiny_folder, UnsupportedError, r"tiny cannot run here\. It is a model of the kind bert, and it is"),
        (tmp_path / "half.gguf", BrokenFileError, r"half\.gguf is no whole GGUF file"),
        (tmp_path / "notes.txt", UnsupportedError, r"notes\.txt is no GGUF file"),
        (tmp_path / "empty", MissingError, r"it has no config\.json"),
    ):
        with pytest.raises(error, match=said):
            add(str(path), read_catalogue())
    assert not own_file().exists()


def test_what_names_nothing_gets_a_sentence() -> None:
    for said in ("", "  ", "nonsense", "a/b/c/d", "/no/such/file.gguf", "~nobody/x", "\0"):
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


def test_without_the_hub_nothing_is_added_and_a_mirror_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="The hub cannot be reached"):
        add(REPO, read_catalogue())
    mirror = Mirror(package="p{}", version="1", file="f{}", pieces=1, size=9, sha256="0" * 64)
    source = ModelSource(gguf=Gguf(repo=REPO, file="t.gguf", mirror=mirror))
    require_worth_fetching(ModelEntry(name="t", source=source), "cpu")


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


@pytest.mark.parametrize("before", ["", "# nothing yet", "models: {}\n", "models:\n", BEFORE.rstrip()])
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
    gone = "    first:  # a comment\n        source: {folder: {path: one}}\n\n"
    assert own_file().read_text() == BEFORE.replace(gone, "")
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
    with pytest.raises(CatalogueError, match=r"was left as it is.*models\.yaml: model 'third'"):
        add_model("third", {"source": {}})
    assert own_file().read_text() == BEFORE
    assert {file.name for file in own_file().parent.iterdir()} == {"models.yaml"}


def test_names_are_free_and_plain() -> None:
    names = ("Qwen3-0.6B-Q8_0.GGUF", "qwen3-0.6b", "Ein Modell (1).gguf", "...")
    free = [free_name(name, read_catalogue()) for name in names]
    assert free == ["qwen3-0.6b-q8_0", "qwen3-0.6b-2", "ein-modell-1", "model"]


def test_a_model_that_ships_gets_draft_models_and_is_nobodys_own() -> None:
    name = read_catalogue().default
    add_model("small", FIELDS)
    add_model(name, {"drafts": ["small"]})
    assert read_catalogue().entry(name).drafts == ("small",)
    assert read_catalogue().entry(name).source.wheel
    assert own_names() == {"small"}
    with pytest.raises(CatalogueError, match="no model is called 'small'"):
        remove_model("small")
    remove_model(name)
    remove_model("small")
    assert own_names() == set()
