"""What a command in this process sets up for the whole process is undone behind each test. Tests marked `large` run
only where they are asked for."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import argon2
import hypothesis
import pytest

from hierchat.store import LOCAL_USER, Store, connection
from tests.testing.openai_server import Script, serving
from tests.testing.stores import new_store

# Each guess of a password takes 0.1 s of a processor, and so would every login of a test.
argon2.PasswordHasher = partial(argon2.PasswordHasher, time_cost=1, memory_cost=32)  # type: ignore[misc]

# Nobody cuts the power but tests.faults, in processes of its own.
connection.SYNCHRONOUS = "OFF"

# How long one example takes tells how busy the machine is.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

gc.disable()  # until all is imported that will be

os.environ["LANGUAGE"] = "en"  # of the terminal, whatever it speaks

# Read once, by Gradio, when it is imported. Its servers look for a free port from there on: two processes that look at
# the same ones take each other's between look and use, and a server that finds its port taken ends with SystemExit.
os.environ["GRADIO_SERVER_PORT"] = str(10_000 + 100 * (os.getpid() % 200))

# What is started with `nohup` or by a service may be deaf to these, and so would every program be that a test starts.
for name in ("SIGHUP", "SIGINT"):
    if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_IGN:
        default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, name), default)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "large" not in config.getoption("-m"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("large")])
        items[:] = [item for item in items if not item.get_closest_marker("large")]


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """Keep what is there by now out of every look for garbage: each would take half a second, and the program asks for
    some itself."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Let torch compute with one thread: tests run side by side, and tiny matrices are slower on several."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_texts_that_ship(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model of a test's own has its texts alone; those that ship are millions of its tokens."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("hierchat.texts.corpora.seeds_dir", lambda: Path("no-texts-ship-here"))


@pytest.fixture(autouse=True)
def drafting_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward of a tiny model takes less time than drafting for it. Tests of what is left out then override this."""
    monkeypatch.setattr("hierchat.drafting.payoff.DraftingGate.opens", lambda gate, token_ms: True)


@pytest.fixture(autouse=True)
def own_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Playwright's event loop rests between two of its calls; a test that drives no browser may run one of its own."""
    held = None if request.node.get_closest_marker("browser") else asyncio._get_running_loop()
    if held is not None:
        asyncio._set_running_loop(None)
    yield
    if held is not None:
        asyncio._set_running_loop(held)


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    root = logging.getLogger()
    before, level, own = list(root.handlers), root.level, logging.getLogger("hierchat").level
    yield
    for handler in [handler for handler in root.handlers if type(handler).__module__ == "hierchat.logs"]:
        if handler not in before:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)
    logging.getLogger("hierchat").setLevel(own)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a process."""
    from tests.testing.browser import browser

    with browser() as launched:
        yield launched


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of the test's own, for a command in this process."""
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name))
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database of the test's own."""
    with new_store(tmp_path / "chat.db") as store:
        yield store


@pytest.fixture
def user(store: Store) -> int:
    """The user of a program without a login."""
    return store.users.ensure(LOCAL_USER)


@pytest.fixture
def fresh(tmp_path: Path) -> Any:
    """A scripted chat service of the test's own."""
    from tests.testing.fake_service import make

    return make(tmp_path)


@pytest.fixture
def script() -> Script:
    """What the server of `url` does, and what it was asked."""
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    """The address of a server that speaks OpenAI's protocol from a script."""
    with serving(script) as url:
        yield url


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as llama.cpp writes it."""
    from tests.testing.tiny_files import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the self-tests of tiny models found."""
    return tmp_path_factory.mktemp("selftest")


@pytest.fixture
def tiny_in_the_catalogue(places: Path, proofs: Path) -> None:
    """`--model tiny` is there, and nothing else is touched; its self-test need not run for each test again."""
    from tests.testing.tiny_chat import model, tokenizer

    (places / "CACHE").mkdir(exist_ok=True)
    (places / "CACHE" / "selftest").symlink_to(proofs, target_is_directory=True)
    config = places / "CONFIG"
    model().save_pretrained(config / "tiny")
    tokenizer().save_pretrained(config / "tiny")
    (config / "models.yaml").write_text("models:\n  tiny:\n    source: {folder: {path: tiny}}\n")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into. Not below pytest's own: each start of pytest closes that to others."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Gradio apps that the test serves, in order."""
    from tests.testing import browser as driving

    made: list[Any] = []
    build = driving.build_app
    monkeypatch.setattr(driving, "build_app", lambda *args: made.append(build(*args)) or made[-1])
    return made


@pytest.fixture
def powerless(open_folder: Path) -> Iterator[None]:
    """Permissions mean nothing to root: be nobody for the rest of the test."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def left_out(skipped: Iterable[Any], marks: str) -> list[str]:
    """What a run left out: the reasons of its skipped tests, and what the marks that were asked for exclude."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    large = ["all that is marked large: models of people, other programs, screenshots (-m large)"]
    return (large if "large" not in marks else []) + [f"{reasons[one]} x {one}" for one in sorted(reasons)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Say at the very end what was left out: no green run hides it."""
    yield
    if lines := left_out(terminalreporter.stats.get("skipped", ()), config.getoption("-m")):
        terminalreporter.section("left out")
        terminalreporter.write_line("\n".join(lines))
