from pathlib import Path

import pytest

from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.fetch.bring import fetched_size, get, is_fetched, removable, weight_bytes
from hierchat.models.load.check import expected_step, fit, refusal
from hierchat.models.progress import CatalogueError, ModelError, UnsupportedError

GOOD = """\
models:
  big:
    source: {hub: {repo: org/big}}
    drafts: [small]
  small:
    default: true
    source:
      folder: {path: models/small}
"""


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_shipped_catalogue() -> None:
    catalogue = read_catalogue()
    assert catalogue.default == "smollm2-135m"
    assert len(catalogue.models) == 64
    for entry in catalogue.models.values():
        assert entry.size
        assert entry.good_for or entry.name == "gemma-3-270m"  # which only continues texts
        sizes = [catalogue.models[draft].size.parameters for draft in entry.drafts]  # type: ignore[union-attr]
        assert sorted([entry.size.parameters, *sizes], reverse=True) == [entry.size.parameters, *sizes]
        assert {draft.split("-")[0] for draft in entry.drafts} <= {entry.name.split("-")[0]}


MIRRORED = f"""\
models:
  big:
    default: true
    source:
      gguf:
        repo: org/big
        file: big.gguf
        mirror:
          package: big-part{{}}
          version: 1.0.0
          file: big/part{{:03}}.bin
          pieces: 3
          size: 1000
          sha256: {"a" * 64}
"""


def test_own_file_extends_and_overrides(tmp_path: Path) -> None:
    shipped = written(tmp_path / "a" / "models.yaml", GOOD)
    text = (
        "models:\n  small: {context_length: 99}\n"
        "  mine: {source: {gguf: {path: ~/x.gguf}}, default: true, drafts: [small]}\n"
    )
    catalogue = read_catalogue([shipped, written(tmp_path / "own" / "models.yaml", text)])
    small, mine = catalogue.entry("small"), catalogue.entry("mine")
    assert catalogue.default == "mine"
    assert (small.context_length, small.default) == (99, False)
    assert small.source.folder.path == tmp_path / "a" / "models" / "small"  # from its file on
    assert mine.source.gguf.path == Path.home() / "x.gguf"


def test_own_file_is_found_in_the_configuration_directory(tmp_path: Path) -> None:
    written(tmp_path / "config" / "models.yaml", "models:\n  smollm2-135m: {system_prompt: Be brief.}\n")
    assert read_catalogue().entry().system_prompt == "Be brief."
    written(tmp_path / "config" / "models.yaml", "models:\n  smollm2-135m: {context_length: 3}\n")
    with pytest.raises(CatalogueError, match=r"config/models.yaml: model 'smollm2-135m': context_length:"):
        read_catalogue()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("big-part{}", "big-part"), "mirror: of several pieces, package must hold the number"),
        (("a" * 64, "abc"), "mirror.sha256: String should match pattern"),
        (("repo: org/big\n        file: b", "path: b"), "a mirror stands beside repo and file"),
        (("drafts: [small]", "drafts: [smal]"), "model 'big': drafts.0: no model is called 'smal'"),
        (("drafts: [small]", "drafts:\n      - small\n      - big"), "cannot draft for itself"),
        (("drafts: [small]", "quantisation: int8"), "model 'big': quantisation: int8 is no longer computed"),
        (("drafts: [small]", "colour: red"), "model 'big': colour: unknown field"),
        (("drafts: [small]", "sampling: {logit_bias: {5: x}}"), "sampling.logit_bias.5"),
        (("drafts: [small]", "default: true"), "only one model can be the default"),
        (("drafts: [small]", "drafts: [small"), ":5: not YAML"),
        (("{hub: {repo: org/big}}", "{hub: {repo: org/big}, folder: {path: x}}"), "exactly one of wheel"),
        (("{hub: {repo: org/big}}", "{gguf: {repo: org/big}}"), "by path, or by repo and file"),
        (("    source: {hub: {repo: org/big}}\n", ""), "model 'big': give either a source or an engine"),
        (("  big:", "  sma ll:"), "String should match pattern"),
        (("    default: true\n", ""), "no model is the default"),
        (("models:", "modells:"), "unknown field 'modells'"),
        (("  big:\n", "  empty:\n  big:\n"), "model 'empty': expected"),
    ],
)
def test_errors_name_file_model_and_field(change, said, tmp_path: Path) -> None:
    text = GOOD if change[0] in GOOD else MIRRORED
    assert change[0] in text
    path = written(tmp_path / "models.yaml", text.replace(*change))
    with pytest.raises(CatalogueError) as caught:
        read_catalogue([path])
    assert any(one.startswith(f"{path}:") and said in one for one in str(caught.value).splitlines())


def test_every_mistake_is_listed(tmp_path: Path) -> None:
    wrong = GOOD.replace("drafts: [small]", "dtype: int3\n    quantisation: q4")
    with pytest.raises(CatalogueError) as caught:
        read_catalogue([written(tmp_path / "models.yaml", wrong)])
    assert len(str(caught.value).splitlines()) == 2


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read"):
        read_catalogue([tmp_path / "none.yaml"])
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogueError, match=r"bad.yaml"):
        read_catalogue([tmp_path / "bad.yaml"])


def test_unknown_name_offers_near_ones() -> None:
    with pytest.raises(ModelError, match=r"Did you mean .*qwen3-0\.6b"):
        read_catalogue().entry("Qwen3-0.6")
    with pytest.raises(ModelError, match="There are smollm2-135m, "):
        read_catalogue().entry("zzzzzz")


def test_a_file_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"not YAML: .* Mend it"):
        read_catalogue([written(tmp_path / "models.yaml", "models:\n  x: " + "[" * 5000 + "]" * 5000)])


ENTRY = "models:\n  here:\n    default: true\n    source: {folder: {path: x}}\n  there:\n    engine: {openai: {%s}}\n"


def read(tmp_path: Path, said: str) -> Catalogue:
    (tmp_path / "models.yaml").write_text(ENTRY % said, encoding="utf-8")
    return read_catalogue([tmp_path / "models.yaml"])


def test_nothing_of_it_is_here_and_nothing_is_missing(tmp_path: Path) -> None:
    entry = read(tmp_path, "url: 'http://127.0.0.1:8000/v1/', model: big, key: secret-words").entry("there")
    assert entry.engine.openai.url == "http://127.0.0.1:8000"
    assert entry.engine.openai.secret == "secret-words"
    for told in (repr(entry), str(entry), entry.model_dump_json()):
        assert "secret-words" not in told
    assert is_fetched(entry, "cpu")
    assert (fetched_size(entry, "cpu"), weight_bytes(entry, "cpu"), removable(entry, "cpu")) == (0, None, 0)
    assert fit(entry, "cpu").verdict == "yes"
    assert "Runs at http://127.0.0.1:8000" in fit(entry, "cpu").why
    assert (refusal(entry, "cpu", "blocks"), expected_step(entry, "cpu")) == ("", None)
    with pytest.raises(UnsupportedError, match=r"there is computed by http://127\.0\.0\.1:8000"):
        get(entry)


def test_what_is_wrong_is_said_without_the_key(tmp_path: Path) -> None:
    for said, wrong in (
        ("url: 127.0.0.1", "expected an address such as"),
        ("url: 'ftp://host'", "expected an address such as"),
        ("url: 'http://name:secret-words@host'", "expected an address such as"),
        ("url: 'http://host', key: secret-words, key_variable: KEY", "not both"),
        ("url: 'http://host', colour: red", "unknown field"),
    ):
        with pytest.raises(CatalogueError, match=wrong) as caught:
            read(tmp_path, said)
        assert "secret-words" not in str(caught.value)
