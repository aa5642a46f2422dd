"""What `import hierchat` offers: the engine in a script of one's own, and proposers of other packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hierchat
from hierchat.drafting.proposer import installed_proposers
from tests.testing.tiny_files import save_tiny

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as a folder, which `load` takes as it takes a name."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name))


def test_importing_is_cheap_and_names_are_found_when_they_are_used() -> None:
    script = (
        "import sys, hierchat; heavy = {'torch', 'numpy', 'numba', 'gradio', 'pydantic', 'sqlite_utils'};"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys();"
        "assert set(hierchat.__all__) <= set(dir(hierchat));"
        "print(*(getattr(hierchat, name).__name__ for name in hierchat.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == hierchat.__all__, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hierchat.nothing


def test_the_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands in the docstring of the package, with a model that is here."""
    example = "".join(f"{line[4:]}\n" for line in hierchat.__doc__.splitlines() if line.startswith("    "))
    assert 8 <= len(example.strip().splitlines()) <= 12
    exec(re.sub(r"smollm2-135m", str(folder), example), {})
    assert re.search(r"\d\.\d\d tokens per forward", capsys.readouterr().out)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Put a distribution where Python finds it: the proposer of CONTRIBUTING.md, and its entry point."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?class Repeats.*?)```", text, re.DOTALL)
    (folder / "repeats.py").write_text(code[1])
    info = folder / "repeats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: repeats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hierchat.proposers]\nrepeats = {target}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_proposer_of_another_package_drafts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "repeats:Repeats")
    assert [made.__name__ for made in installed_proposers()] == ["Repeats"]  # type: ignore[attr-defined]
    model = hierchat.load(str(folder))
    settings = hierchat.GenerationSettings(max_new_tokens=24)
    said = [("user", "one two one two"), ("assistant", "one two"), ("user", "one two")]
    prompt = model.prompt([{"role": role, "content": text} for role, text in said])
    request = hierchat.GenerationRequest(prompt, settings)
    plain = [token for step in model.engine.generate(request) for token in step.tokens]
    steps = list(model.engine.generate(hierchat.GenerationRequest(prompt, settings, model.drafter(settings))))
    assert [token for step in steps for token in step.tokens] == plain
    assert sum(step.proposed.get("repeats", 0) for step in steps)
    model.learn(plain)
    assert isinstance(model.text(plain), str)


def test_the_ten_lines_of_the_architecture_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch, "repeats:Repeats")
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code[1].replace("smollm2-135m", str(folder)), {})
    lines = re.findall(r"^\d+ (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) == 3
    assert len(set(lines)) == 1


def test_one_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch, "nowhere:Repeats")
    assert installed_proposers() == ()
    assert "repeats cannot be imported" in caplog.text


def test_a_backend_that_is_none(folder: Path) -> None:
    with pytest.raises(ValueError, match="no backend"):
        hierchat.load(str(folder), backend="abacus")  # type: ignore[arg-type]
