"""Models in several GGUF files: they are what they would be in one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierchat.config import models_dir
from hierchat.models.catalogue import Gguf, ModelEntry, read_catalogue
from hierchat.models.fetch.bring import fetched_size, is_fetched, remove, shards_there
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.add import add
from hierchat.models.load.load_model import load
from hierchat.models.progress import BrokenFileError, MissingError, UnsupportedError
from hierchat.models.runnable import gguf_refused
from tests.gguf_files.writer import cut
from tests.testing.fake_hub import REPO, FakeHub
from tests.testing.tiny_files import of_gguf


@pytest.fixture
def pieces(tiny_gguf: Path, tmp_path: Path) -> list[Path]:
    """Four files of at most six tensors."""
    return cut(tiny_gguf, tmp_path / "pieces", 6)


def added(said: str) -> ModelEntry:
    name, _ = add(said, read_catalogue())
    return read_catalogue().entry(name)


def test_they_load_as_one_file_does(tiny_gguf: Path, pieces: list[Path]) -> None:
    assert [path.name for path in pieces] == [f"tiny.Q8_0-0000{n}-of-00004.gguf" for n in (1, 2, 3, 4)]
    head, whole = read_head(pieces[0]), read_head(tiny_gguf)
    assert {(one.name, one.shape, one.type) for one in head.tensors} == {
        (one.name, one.shape, one.type) for one in whole.tensors
    }
    assert [tensor.shard for tensor in head.tensors] == sorted(tensor.shard for tensor in head.tensors)
    one, other = load(of_gguf(tiny_gguf), "cpu"), load(of_gguf(pieces[0]), "cpu")
    for (name, matrix), (_, its) in zip(one.model.matrices(), other.model.matrices(), strict=True):
        np.testing.assert_array_equal(matrix.data, its.data, err_msg=name)
    for name, vector in one.model.vectors.items():
        np.testing.assert_array_equal(vector, other.model.vectors[name], err_msg=name)
    text = "the same tokenizer"
    assert one.tokenizer(text)["input_ids"] == other.tokenizer(text)["input_ids"]
    assert one.end_ids == other.end_ids
    size = sum(path.stat().st_size for path in pieces)
    assert fetched_size(of_gguf(pieces[2]), "cpu") == size


def test_any_of_them_or_their_folder_is_added_as_one_model(pieces: list[Path]) -> None:
    for said in (pieces[2], pieces[0].parent):
        found = added(str(said))
        assert (found.name, found.source.gguf) == ("tiny.q8_0", Gguf(path=pieces[0]))
        assert found.size.parameters == read_head(pieces[0]).parameters


def test_a_missing_one_is_named(pieces: list[Path]) -> None:
    pieces[1].unlink()
    said = r"Q8_0-00001-of-00004\.gguf is one of the 4 files of a model; missing in .*: tiny\.Q8_0-00002-of"
    for read in (lambda: add(str(pieces[0]), read_catalogue()), lambda: load(of_gguf(pieces[0]), "cpu")):
        with pytest.raises(MissingError, match=said):
            read()
    assert not is_fetched(of_gguf(pieces[0]), "cpu")
    pieces[2].unlink()
    with pytest.raises(
        MissingError, match=r"missing in .*: .*00002-of.*, .*00003-of-00004\.gguf\. .* all of"
    ):
        read_head(pieces[0])


def test_names_that_are_not_theirs(pieces: list[Path], tiny_gguf: Path, tmp_path: Path) -> None:
    pieces[0].rename(tmp_path / "renamed.gguf")
    said = r"renamed\.gguf says that its model is cut into 4 files.* there are 1\."
    with pytest.raises(BrokenFileError, match=said):
        read_head(tmp_path / "renamed.gguf")
    others = cut(tiny_gguf, tmp_path / "others", 5)
    for number, path in enumerate((*others[:2], *pieces[2:4])):
        path.rename(tmp_path / f"x-0000{number + 1}-of-00004.gguf")
    with pytest.raises(BrokenFileError, match="not of one model"):
        read_head(tmp_path / "x-00001-of-00004.gguf")


def test_transformers_reads_one_file_alone(pieces: list[Path]) -> None:
    head = read_head(pieces[0])
    assert gguf_refused(head) == "only the CPU engine reads such a file"
    other = replace(head, values={**head.values, "general.architecture": "starcoder2"})
    assert "in several files" in str(gguf_refused(other))
    with pytest.raises(UnsupportedError, match="only the CPU engine reads"):
        load(of_gguf(pieces[0]), "cpu", backend="bfloat16")


@pytest.mark.parametrize("partly", [False, True])
def test_out_of_a_folder_of_the_hub_and_gone_again(
    partly: bool,
    pieces: list[Path],
    cache: Path,
    hub_of: Callable[[dict[str, bytes]], FakeHub],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {f"Q8_0/{path.name}": path.read_bytes() for path in pieces}
    hub_of(files)
    found = added(REPO)
    assert (found.name, found.source.gguf) == ("tiny.q8_0", Gguf(repo=REPO, file=f"Q8_0/{pieces[0].name}"))
    assert not is_fetched(found, "cpu")
    assert load(found, "cpu").backend == "blocks"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert is_fetched(found, "cpu")
    size = sum(map(len, files.values()))
    assert fetched_size(found, "cpu") == size
    assert found.source.gguf
    there = shards_there(found.source)
    assert len(there) == 4
    if partly:
        size -= there[1].stat().st_size
        there[1].resolve().unlink()
        there[1].unlink(missing_ok=True)
        assert not is_fetched(found, "cpu")
        assert fetched_size(found, "cpu") == size
    remove(found, "cpu")
    assert not list(cache.rglob("*.gguf"))
    assert partly or not list(cache.rglob("*.bin"))


def test_dropped_ones_go_together(
    pieces: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path / "data"))
    models_dir().mkdir(parents=True)
    for path in pieces[1:]:
        path.rename(models_dir() / path.name)
    with pytest.raises(MissingError, match="00001-of-00004"):
        add(pieces[1].name, read_catalogue())
    pieces[0].rename(models_dir() / pieces[0].name)
    found = added(pieces[0].name)
    remove(found, "cpu")
    assert not list(models_dir().iterdir())
