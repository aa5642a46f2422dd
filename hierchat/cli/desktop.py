"""Define `hierchat desktop`: an entry in the menu of the system, and the page in a window of its own."""

import _thread
import html
import os
import plistlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread

import click
import httpx
import psutil
from PIL import Image

from hierchat import logs
from hierchat.cli.options import CommandError
from hierchat.cli.serve import PageFlags, require_address, serve
from hierchat.config import APP, data_dir, require_folders, shipped
from hierchat.language import _

_FOLDERS = ("HIERCHAT_CACHE", "HIERCHAT_CONFIG", "HIERCHAT_DATA")
_HOST, _PORTS = "127.0.0.1", range(7860, 7880)
_HANDED_ON_SECONDS = 5.0
"""A browser that ends sooner gave the page to one that ran before: its end is not the window's."""
_BROWSERS = {
    "linux": ("chromium", "google-chrome", "google-chrome-stable", "microsoft-edge", "brave-browser"),
    "darwin": ("Google Chrome", "Chromium", "Microsoft Edge", "Brave Browser"),
    "win32": ("Google/Chrome/Application/chrome.exe", "Microsoft/Edge/Application/msedge.exe"),
}
"""Browsers that have windows without an address bar."""
_SHORTCUT = (
    "$ErrorActionPreference = 'Stop'; $link = (New-Object -ComObject WScript.Shell).CreateShortcut($env:HC_LINK); "
    "$link.TargetPath = $env:HC_TARGET; $link.Arguments = $env:HC_ARGUMENTS; $link.IconLocation = $env:HC_ICON; "
    "$link.WindowStyle = 7; $link.Save()"
)
"""PowerShell that writes a shortcut. 7: its console is minimised."""


def _set_folders(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> None:
    """Set this process's folders to those that were in force when the menu's entry was made."""
    os.environ.update(dict(pair.split("=", 1) for pair in given if "=" in pair))


@click.command("desktop")
@click.option("--remove", is_flag=True, help="take it out of the menu again")
@click.option(
    "--open", "opens", is_flag=True, help="what the entry does: a window over a running hierchat or a new one"
)
@click.option("--set", multiple=True, hidden=True, expose_value=False, callback=_set_folders)
def desktop_command(remove: bool, opens: bool) -> int:
    """Put hierchat into the menu of this desktop, for this user."""
    if opens and not remove:
        return _open()
    try:
        if remove:
            gone = remove_entry(sys.platform, os.environ)
            shutil.rmtree(data_dir() / "window", ignore_errors=True)
            print(_("Removed: {path}").format(path=gone) if gone else _("hierchat is not in the menu."))
            return 0
        folders = [
            f"--set={name}={os.path.abspath(os.environ[name])}" for name in _FOLDERS if os.environ.get(name)
        ]
        command = [sys.executable, "-P", "-m", APP, "desktop", "--open", *folders]
        entry = add_entry(sys.platform, os.environ, command)
        print(_("hierchat is in the menu now: {path}").format(path=entry))
    except OSError as error:
        raise CommandError(f"The menu cannot be changed: {error.filename}: {error.strerror}.") from error
    return 0


def add_entry(system: str, variables: Mapping[str, str], command: list[str]) -> Path:
    """Write the menu's entry, which runs `command`, and return its path. Raises CommandError and OSError."""
    entry, icon = _places(system, variables)
    for folder in (entry.parent, icon.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with Image.open(shipped("assets") / "icon.png") as picture:
        picture.convert("RGBA").save(icon)  # in the form that its name says
    if system == "win32":
        # As variables: in the script they would have to be quoted for PowerShell
        values = {
            "HC_LINK": str(entry), "HC_ICON": str(icon),
            "HC_TARGET": command[0], "HC_ARGUMENTS": subprocess.list2cmdline(command[1:]),
        }  # fmt: skip
        shell = ["powershell", "-NoProfile", "-NonInteractive", "-Command", _SHORTCUT]
        values = {**variables, **values}
        done = subprocess.run(shell, env=values, capture_output=True, text=True, errors="replace")
        if done.returncode or not entry.exists():
            raise CommandError(f"PowerShell cannot write {entry}: {done.stderr.strip()}")
    elif system == "darwin":
        program = entry / "Contents" / "MacOS" / APP
        program.parent.mkdir(exist_ok=True)
        about = {
            "CFBundleName": APP, "CFBundleIdentifier": f"local.{APP}", "CFBundleExecutable": APP,
            "CFBundleIconFile": icon.name, "CFBundlePackageType": "APPL",
            "LSUIElement": True,  # a script cannot answer the Dock, which would wait for it
        }  # fmt: skip
        (entry / "Contents" / "Info.plist").write_bytes(plistlib.dumps(about))
        program.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n", encoding="utf-8")
        program.chmod(0o755)
    else:
        lines = [
            "[Desktop Entry]", "Type=Application", f"Name={APP}", "Comment=A private chat on your own machine",
            f"Exec={' '.join(map(_quoted, command))}", f"Icon={icon}", "Terminal=false",
            "Categories=Utility;", f"StartupWMClass={APP}", "",
        ]  # fmt: skip
        entry.write_text("\n".join(lines), encoding="utf-8")
    return entry


def remove_entry(system: str, variables: Mapping[str, str]) -> Path | None:
    """Remove the menu's entry and icon, and return the entry's path; None if none was there. Raises as add_entry."""
    entry, icon = _places(system, variables)
    there = entry.exists()
    if entry.is_dir():
        shutil.rmtree(entry)
    for file in (entry, icon):
        file.unlink(missing_ok=True)
    return entry if there else None


def _places(system: str, variables: Mapping[str, str]) -> tuple[Path, Path]:
    name = "APPDATA" if system == "win32" else "HOME"
    if not variables.get(name):
        raise CommandError(f"There is no home folder to put the entry in: {name} is not set.")
    home = Path(variables[name])
    if system == "win32":
        return home / f"Microsoft/Windows/Start Menu/Programs/{APP}.lnk", home / APP / f"{APP}.ico"
    if system == "darwin":
        app = home / "Applications" / f"{APP}.app"
        return app, app / "Contents" / "Resources" / f"{APP}.icns"
    data = Path(variables.get("XDG_DATA_HOME", ""))
    data = data if data.is_absolute() else home / ".local" / "share"  # as its specification says
    return data / f"applications/{APP}.desktop", data / f"icons/hicolor/512x512/apps/{APP}.png"


def _quoted(word: str) -> str:
    """Quote a word of a desktop entry's Exec: in quotes, escaped as any value of the file, and % doubled."""
    escaped = re.sub(r'([`$"\\])', r"\\\1", word)
    return f'"{escaped}"'.replace("\\", "\\\\").replace("%", "%%")


def find_running(processes: Iterable[psutil.Process]) -> str | None:
    """Return the address of a hierchat that one of these processes serves for this user; None if none does."""
    me = psutil.Process().username()
    for process in processes:
        with suppress(psutil.Error, OSError):
            if process.username() != me or not re.search(f"python|{APP}", process.name(), re.I):
                continue
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    host, port = connection.laddr
                    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
                    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
                    if _is_ours(address):
                        return address
    return None


def _is_ours(address: str) -> bool:
    with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
        return bool(httpx.get(f"{address}manifest.json", timeout=2.0, trust_env=False).json()["name"] == APP)
    return False


def find_browser(system: str, variables: Mapping[str, str]) -> str | None:
    """Return the path of a browser that can open a window without an address bar, or None."""
    names: Iterable[str] = _BROWSERS.get(system, _BROWSERS["linux"])
    if system == "darwin":
        names = [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in names]
    elif system == "win32":
        roots = ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA")
        names = [f"{variables[root]}/{name}" for name in names for root in roots if variables.get(root)]
    found = (shutil.which(name, path=variables.get("PATH", "")) for name in names)
    # A snap may not write the folder of its profile that we name
    return next((file for file in found if file and not file.startswith("/snap/")), None)


def show(url: str, browser: str | None, profile: Path) -> bool:
    """Show the page in a window, and return True once it was closed; False if that cannot be known."""
    if browser:
        began = time.monotonic()
        window = [browser, f"--app={url}", f"--user-data-dir={profile}", f"--class={APP}", "--no-first-run"]
        quiet = subprocess.DEVNULL
        if subprocess.run(window, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0:
            return time.monotonic() - began > _HANDED_ON_SECONDS
    webbrowser.open(url)
    return False


def _open() -> int:
    """Show the running hierchat in a window, or start one that ends with its window. Returns the exit code."""
    browser, profile = find_browser(sys.platform, os.environ), data_dir() / "window"
    if url := find_running(psutil.process_iter()):
        show(url, browser, profile)
        return 0

    def window(url: str) -> None:
        if show(url, browser, profile):
            _thread.interrupt_main(signal.SIGTERM)

    try:
        require_folders()
        flags = PageFlags(_HOST, _free_port(), share=False, db=None, auth=False, api=False, api_open=False)
        return serve(flags, None, ready=lambda url: Thread(target=window, args=(url,), daemon=True).start())
    except Exception as error:
        if not (sys.stderr and sys.stderr.isatty()):  # from the menu, nobody would see why
            why = html.escape(logs.error_message(error, here=True))
            with NamedTemporaryFile("w", suffix=".html", encoding="utf-8", delete=False) as page:
                page.write(f"<meta charset=utf-8><title>{APP}</title><p>{APP} did not start. {why}")
            webbrowser.open(Path(page.name).as_uri())
        raise


def _free_port() -> int:
    for port in _PORTS:
        with suppress(CommandError):
            require_address(_HOST, port)
            return port
    raise CommandError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free.")
