"""The entry in the menu of each system, the running hierchat that it finds, and its window."""

from __future__ import annotations

import configparser
import os
import plistlib
import socket
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from unittest import mock

import psutil
import pytest
from PIL import Image

from hierchat.cli import desktop
from hierchat.cli.main import main
from hierchat.cli.options import CommandError
from hierchat.cli.serve import qr_code

FLAGS = ["--open", '--set=HIERCHAT_DATA=/a "b" $c\\d %u']
COMMAND = ["/opt/my env/bin/python", "-m", "hierchat", "desktop", *FLAGS]
POWERSHELL = """#!/bin/sh
[ -n "$HC_FAILS" ] && { echo "Access is denied." >&2; exit 1; }
printf '%s\\n' "$HC_TARGET" "$HC_ARGUMENTS" "$HC_ICON" "$5" > "$HC_LINK"
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Variables of a user whose home is empty, and a PowerShell that writes down what it is asked for."""
    shell = tmp_path / "bin" / "powershell"
    shell.parent.mkdir()
    shell.write_text(POWERSHELL)
    shell.chmod(0o755)
    place = str(tmp_path / "home")
    return {"HOME": place, "APPDATA": place, "PATH": f"{shell.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_an_entry_comes_and_goes(system: str, home: dict[str, str]) -> None:
    entry = desktop.add_entry(system, home, COMMAND)
    assert desktop.add_entry(system, home, COMMAND) == entry  # once more, as after a move
    icons = [path for kind in ("png", "ico", "icns") for path in Path(home["HOME"]).rglob(f"hierchat.{kind}")]
    with Image.open(icons[0]) as drawn:
        assert drawn.width >= 256
    assert desktop.remove_entry(system, home) == entry
    assert [path for path in Path(home["HOME"]).rglob("*") if path.is_file()] == []
    assert desktop.remove_entry(system, home) is None
    for does in (lambda: desktop.add_entry(system, {}, COMMAND), lambda: desktop.remove_entry(system, {})):
        with pytest.raises(CommandError, match=r"no home folder .*: (HOME|APPDATA) is not set"):
            does()


def test_the_entry_of_linux(home: dict[str, str], tmp_path: Path) -> None:
    assert desktop.add_entry("linux", home | {"XDG_DATA_HOME": "not/absolute"}, COMMAND) == (
        tmp_path / "home/.local/share/applications/hierchat.desktop"
    )
    file = configparser.RawConfigParser()
    file.read(desktop.add_entry("linux", home | {"XDG_DATA_HOME": str(tmp_path / "xdg")}, COMMAND))
    entry = file["Desktop Entry"]
    assert (entry["Name"], entry["Terminal"]) == ("hierchat", "false")
    assert Path(entry["Icon"]).is_relative_to(tmp_path / "xdg" / "icons")
    # As the specification has it read: the value's own backslashes, then %, then words in quotes.
    line = entry["Exec"].replace("\\\\", "\\").replace("%%", "%")
    done = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True)
    assert done.stdout.splitlines() == COMMAND


def test_the_app_of_macos_runs_the_command(home: dict[str, str]) -> None:
    python = "import sys; print(sys.argv[1:])"
    app = desktop.add_entry("darwin", home, [sys.executable, "-c", python, "a b", "'\"$x"])
    about = plistlib.loads((app / "Contents" / "Info.plist").read_bytes())
    program = app / "Contents" / "MacOS" / about["CFBundleExecutable"]
    assert (app / "Contents" / "Resources" / about["CFBundleIconFile"]).is_file()
    assert subprocess.check_output([program], text=True).strip() == str(["a b", "'\"$x"])


def test_the_shortcut_of_windows(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", home["PATH"])
    link = desktop.add_entry("win32", home, COMMAND)
    assert (
        link.relative_to(tmp_path / "home").as_posix() == "Microsoft/Windows/Start Menu/Programs/hierchat.lnk"
    )
    target, arguments, icon, script = link.read_text().splitlines()
    assert (target, arguments) == (COMMAND[0], subprocess.list2cmdline(COMMAND[1:]))
    assert Path(icon).suffix == ".ico"
    assert str(tmp_path) not in script  # paths are never PowerShell
    with pytest.raises(CommandError, match=r"hierchat\.lnk: Access is denied\."):
        desktop.add_entry("win32", home | {"HC_FAILS": "1"}, COMMAND)


def test_the_command_keeps_the_folders_that_are_in_force(
    places: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (places / "file").touch()
    for name in ("HOME", "APPDATA", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(places / "file"))
    assert main(["desktop"]) == 1
    assert "The menu cannot be changed: " in (said := capsys.readouterr().err)
    assert str(places / "file") in said
    for name, value in (home | {"XDG_DATA_HOME": ""}).items():
        monkeypatch.setenv(name, value)
    assert main(["desktop"]) == 0
    entry = Path(capsys.readouterr().out.partition(": ")[2].strip())
    if sys.platform == "linux":
        assert f"--set=HIERCHAT_DATA={places / 'DATA'}" in entry.read_text()
    profile = places / "DATA" / "window"
    profile.mkdir(parents=True)
    assert main(["desktop", "--remove"]) == 0
    assert not entry.exists()
    assert not profile.exists()
    assert main(["desktop", "--remove", f"--set=HIERCHAT_DATA={places}"]) == 0
    assert "not in the menu" in capsys.readouterr().out
    assert os.environ["HIERCHAT_DATA"] == str(places)


def test_a_running_hierchat_is_found_and_another_program_is_not(tmp_path: Path) -> None:
    manifest, me = tmp_path / "manifest.json", mock.Mock(wraps=psutil.Process())
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        own = [one for one in psutil.Process().net_connections("tcp") if one.laddr.port == server.server_port]
        me.net_connections.return_value = own  # other tests of this process may serve a hierchat, too
        manifest.write_text('{"name": "hierchat"}')
        assert desktop.find_running([me]) == f"http://127.0.0.1:{server.server_port}/"
        assert desktop.find_running([]) is None
        for other in ('{"name": "else"}', "[]", "no JSON", "7"):
            manifest.write_text(other)
            assert desktop.find_running([me]) is None
        server.shutdown()


@pytest.mark.parametrize(
    ("system", "variable", "name"),
    [("linux", "PATH", "chromium"), ("win32", "PROGRAMFILES(X86)", "Microsoft/Edge/Application/msedge.exe")],
)
def test_a_window_of_its_own(
    system: str, variable: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desktop.find_browser(system, {variable: str(tmp_path)}) is None
    browser = tmp_path / name
    browser.parent.mkdir(parents=True, exist_ok=True)
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked; exit $(cat {tmp_path}/code)\n')
    browser.chmod(0o755)
    assert desktop.find_browser(system, {variable: str(tmp_path)}) == str(browser)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for code, seconds, closed in ((0, -1.0, True), (0, 60.0, False), (1, -1.0, False)):
        (tmp_path / "code").write_text(str(code))
        monkeypatch.setattr(desktop, "_HANDED_ON_SECONDS", seconds)
        assert desktop.show("http://127.0.0.1:1/", str(browser), tmp_path / "profile") is closed
    words = (tmp_path / "asked").read_text().split()
    assert {"--app=http://127.0.0.1:1/", f"--user-data-dir={tmp_path / 'profile'}"} <= set(words)
    assert opened == ["http://127.0.0.1:1/"]  # of the browser that failed
    assert not desktop.show("http://127.0.0.1:2/", None, tmp_path)
    assert opened[-1] == "http://127.0.0.1:2/"


def test_a_start_from_the_menu_that_fails_shows_why(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(psutil, "process_iter", lambda: [])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(desktop, "_PORTS", range(port, port + 1))
        assert main(["desktop", "--open"]) == 1
    said = f"No port from {port} to {port} is free."
    assert said in capsys.readouterr().err
    page = Path(opened[0].removeprefix("file://"))
    assert said in page.read_text()
    page.unlink()


def test_the_address_as_a_qr_code() -> None:
    code = qr_code("192.168.1.20", 7860, "utf-8")
    assert code.endswith("On a phone in this network: http://192.168.1.20:7860\n")
    assert "█" in code
    assert "0.0.0.0:" not in qr_code("0.0.0.0", 7860, "utf-8") or not psutil.net_if_addrs()
    assert "http://[2001:db8::1]:80\n" in qr_code("2001:db8::1", 80, "utf-8")
    assert qr_code("192.168.1.20", 7860, "ascii") == ""
