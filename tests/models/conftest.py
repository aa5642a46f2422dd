"""A tiny model as a folder and on a hub, and a cache of each test's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hierchat.models.load import tokenizer_files
from tests.testing.fake_hub import FakeHub
from tests.testing.tiny_files import save_tiny, serving_hub


@pytest.fixture(scope="session")
def _tiny_master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tiny_folder(_tiny_master: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for file in _tiny_master.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has an empty cache and no configuration."""
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path / "config"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def trusted_tokenizers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers are not tried in a process of their own, which takes seconds, but where that is tested."""
    if "hostile" not in request.node.nodeid:
        monkeypatch.setattr(tokenizer_files, "require_bounded", lambda folder, *, plainly: None)


@pytest.fixture
def hub_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, bytes]], FakeHub]]:
    """Serve a repository with these files."""
    with ExitStack() as stack:

        def serve(files: dict[str, bytes]) -> FakeHub:
            hub = stack.enter_context(serving_hub(files))
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            return hub

        yield serve


@pytest.fixture
def hub(hub_of: Callable[[dict[str, bytes]], FakeHub], tiny_folder: Path) -> FakeHub:
    return hub_of({file.name: file.read_bytes() for file in tiny_folder.iterdir()})
