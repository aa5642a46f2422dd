"""What `pip install` brings is the whole program: a wheel in an environment of its own, outside the clone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hierchat.config import cache_dir
from tests.end_to_end.program import REPLY_MS, ROOT, Program
from tests.testing import browser as driving

pytestmark = pytest.mark.timeout(1200)
MODEL_FOLDERS = ("blocks", "gguf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git would hand over, so that nothing but the tree's own files can get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    tree = ROOT
    if kept.returncode == 0:
        tree = folder / "tree"
        for name in filter(None, kept.stdout.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, tree / name)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, tree)
    (built,) = folder.glob("*.whl")
    return built


def test_a_wheel_has_all_that_the_program_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    expected = {
        f"hierchat/{path.relative_to(ROOT)}" for path in (ROOT / "assets").rglob("*") if path.is_file()
    }
    code = [
        path for path in (ROOT / "hierchat").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    expected |= {str(path.relative_to(ROOT)) for path in code} | {"hierchat/models.yaml", "hierchat/py.typed"}
    assert expected <= inside
    assert not {name for name in inside if not name.startswith(("hierchat/", "hierchat-"))}


def test_a_wheel_lists_the_packages_of_the_lock(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (bill,) = (name for name in archive.namelist() if ".dist-info/sboms/" in name)
        listed = json.loads(archive.read(bill))
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "hierchat")
    found = [f"{one['name']}=={one['version']}" for one in listed["components"]]
    pinned = re.findall(r"^[\w.-]+==[^\s;\\]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert sorted(found) == sorted(pinned)


def test_a_wheel_is_the_same_to_the_byte_when_it_is_built_again(wheel: Path, tmp_path: Path) -> None:
    """At another time, in another folder: whoever has the sources can check a release."""
    tree = wheel.parent / "tree"
    if not tree.is_dir():
        pytest.skip("no clone: what else is in this folder would get in")
    again = shutil.copytree(tree, tmp_path / "again")
    for path in again.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", tmp_path, again)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_an_installed_wheel_finds_what_came_with_it(wheel: Path, tmp_path: Path) -> None:
    programs = _install(wheel, tmp_path / "environment")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = _environment(tmp_path)
    where = "import hierchat, hierchat.texts.corpora as s; print(hierchat.__file__, *s.seeds_dir().glob('*.jsonl.xz'))"
    said = _run(programs / "python", "-c", where, cwd=elsewhere, env=environment).split()
    assert len(said) > 1
    assert all(Path(path).is_relative_to(tmp_path / "environment") for path in said)
    assert "smollm2-135m\t*" in _run(programs / "hierchat", "models", "list", cwd=elsewhere, env=environment)


@pytest.mark.browser
@pytest.mark.large
def test_an_installed_wheel_answers(wheel: Path, tmp_path: Path, chromium: Browser) -> None:
    """Where it is installed, all kernels are compiled anew."""
    programs = _install(wheel, tmp_path / "environment")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = _environment(tmp_path)
    program = Program(tmp_path, [programs / "hierchat"], elsewhere, environment)
    program.start()
    try:
        with driving.visiting(chromium, program.address) as chat:
            chat.page.set_default_timeout(REPLY_MS)
            chat.open()
            # Sampled by a new seed each time: what it says may be wrong.
            assert re.search(r"\w{3}", chat.ask("What is the capital of France?", REPLY_MS))
    finally:
        program.stop(signal.SIGKILL)
    assert not list(elsewhere.iterdir())


def _install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel; the folder of its programs. It sees the libraries of this one, but not the
    clone: Python reads no .pth files, such as those of an editable installation, in folders that a .pth file adds."""
    venv.create(folder, symlinks=os.name != "nt")
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    places = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(places["purelib"]) / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
    # Through the new environment's Python, as the script's first line must name it
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--ignore-installed")
    _run(programs / "python", *install, wheel)
    return programs


def _environment(tmp_path: Path) -> dict[str, str]:
    """Folders of its own; only the default model's files are shared, where they are here already."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in MODEL_FOLDERS:
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(cache_dir() / name, target_is_directory=True)
    own = {f"HIERCHAT_{name}": str(tmp_path / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    return (
        {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own | {"COLUMNS": "200"}
    )


def _run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
