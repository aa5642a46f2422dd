from collections.abc import Iterator

import pytest

from tests.api.scripted import TOOLS_TEMPLATE, Script, Served, make_slot, scripted, serving


@pytest.fixture(autouse=True)
def _every_step_is_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.reply_stream.FRAME_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@pytest.fixture(scope="module")
def tiny_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A random model that is computed here; programs on this machine need no key."""
    with serving(tmp_path_factory.mktemp("tiny"), make_slot()) as served:
        yield served


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, Served]]:
    script = Script()
    slot = make_slot(scripted(script, TOOLS_TEMPLATE))
    with serving(tmp_path_factory.mktemp("script"), slot) as served:
        yield script, served


@pytest.fixture
def script(written: tuple[Script, Served]) -> Script:
    """The script of `endpoint`, as new."""
    written[0].__init__()  # type: ignore[misc]
    written[1].store.keys.set_access("open")
    return written[0]


@pytest.fixture
def endpoint(written: tuple[Script, Served], script: Script) -> Served:
    """A model that writes what `script` says, and knows of tools."""
    return written[1]
