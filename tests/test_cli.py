"""The command line, as a user types it."""

import socket
from pathlib import Path

import pytest

from hierchat.cli import serve
from hierchat.cli.main import main
from tests.testing.ports import free_port


@pytest.mark.parametrize("arguments", [["sing"], ["models"], ["models", "get"]])
def test_wrong_arguments_show_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: hierchat")


@pytest.mark.parametrize("arguments", [["serve"], ["--verbose", "serve"], ["serve", "--verbose"]])
def test_a_call_without_a_command_serves(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    verbose: list[bool] = []
    monkeypatch.setattr(serve, "serve", lambda flags, *more: ports.append(flags.port) or 0)
    monkeypatch.setattr("hierchat.logs.set_up", verbose.append)
    short = [one for one in arguments if one != "serve"]
    for line in (arguments, short, [*short, "--port", "80"], [*arguments, "--port", "80"]):
        assert main(line) == 0
    assert ports == [7860, 7860, 80, 80]
    assert set(verbose) == {"--verbose" in arguments}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says that cannot do what it was asked for."""
    assert main([str(argument) for argument in arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "did not expect" not in said
    return said


def test_a_port_in_use_is_named(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert "Address already in use" in refused(capsys, "--port", str(port))


@pytest.mark.parametrize("command", [[], ["models", "list"], ["keys", "list"], ["corpus", "list"]])
@pytest.mark.parametrize("variable", ["CACHE", "CONFIG", "DATA"])
def test_a_file_in_place_of_a_folder(
    command: list[str],
    variable: str,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (places / "file").touch()
    monkeypatch.setenv(f"HIERCHAT_{variable}", str(places / "file"))
    assert f"Set HIERCHAT_{variable} to a folder" in refused(capsys, *command)


def test_folders_that_cannot_be_written(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (places / "file").touch()
    monkeypatch.setenv("HIERCHAT_DATA", str(places / "file" / "data"))
    assert "choose another place with --db" in refused(capsys, "--port", str(free_port()))
    monkeypatch.setenv("HIERCHAT_CACHE", str(places / "file" / "cache"))
    assert "set HIERCHAT_CACHE to another folder" in refused(capsys, "models", "list")


@pytest.mark.parametrize("command", [[], ["keys", "list"]])
def test_a_folder_is_no_database(
    command: list[str], places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = [] if command else ["--port", str(free_port())]
    said = refused(capsys, *command, *port, "--db", places)
    assert f"{places} is a folder or a device, not a file" in said
    assert "disk" not in said


def test_a_file_that_cannot_be_read_hides_no_other_model(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = places / "CONFIG" / "models.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("models: {odd: {source: {gguf: {path: /proc/self/mem}}, licence: none}}")
    assert main(["models", "list"]) == 0
    said = capsys.readouterr()
    assert "odd: /proc/self/mem is no whole GGUF file" in said.err
    assert "smollm2-135m\t" in said.out


def test_the_terminal_speaks_its_language(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGUAGE", "de_DE:en")
    assert "Kein Modell heißt 'nosuch'" in refused(capsys, "models", "get", "nosuch")
