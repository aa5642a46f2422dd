from pathlib import Path

import pytest
from click import unstyle

from hierchat.cli.main import main
from hierchat.models.catalogue import read_catalogue


@pytest.fixture
def own_model(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    text = f"models:\n  tiny: {{source: {{folder: {{path: {tiny_folder}}}}}, licence: mine}}\n"
    (tmp_path / "config" / "models.yaml").write_text(text)


def test_a_terminal_gets_a_table_and_a_pipe_lines_of_tabs(
    own_model: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = read_catalogue().models
    monkeypatch.setenv("COLUMNS", "40")  # of no terminal
    assert main(["models", "list"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == list(models)
    assert rows[0][:3] == ["smollm2-135m", "*", "135M"]
    assert rows[2][4:] == ["own engine", "Apache-2.0", "gguf", "smollm2-360m, smollm2-135m"]
    assert next(row for row in rows if row[0] == "tiny")[5:] == ["mine", "folder", "-"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["models", "list"]) == 0
    head, *lines = unstyle(capsys.readouterr().out).splitlines()
    assert head.split()[-1] == "drafts"
    assert [line.split()[0] for line in lines] == list(models)


def test_a_model_and_errors_without_traceback(
    own_model: None, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "get", "tiny"]) == 0
    assert str(tiny_folder) in capsys.readouterr().out
    assert main(["models", "get", "smollm-135m"]) == 1
    said = capsys.readouterr().err
    assert "Did you mean smollm2-135m" in said
    assert "Traceback" not in said
    (tmp_path / "config" / "models.yaml").write_text("models: [")
    assert main(["models", "list"]) == 1
    assert "models.yaml:1: not YAML" in capsys.readouterr().err
