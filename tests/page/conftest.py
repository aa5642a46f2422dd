"""One browser and one server over the scripted service for all browser tests; each test gets a fresh visitor."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, FakeSlot, Script, make
from tests.testing.fake_shelf import FakeModelManager


@pytest.fixture(scope="session", autouse=True)
def _private_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with driving.files_wait_in(tmp_path_factory.mktemp("transfer")):
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeService, str]]:
    service = make(tmp_path_factory.mktemp("page"))
    with driving.serving(service) as address:
        yield service, address


@pytest.fixture
def service(server: tuple[FakeService, str]) -> FakeService:
    """The service behind the page, its script and its data as new."""
    fake = server[0]
    fake.script, fake.slot.status, fake.slot.started, fake.asked = Script(), FakeSlot().status, [], []
    fake.slot.names = FakeSlot().names
    fake.models = FakeModelManager(fake.slot)
    fake.texts.reset()
    fake.in_progress.end(fake.user)  # replies go on when a test has ended
    assert all(reply.ended.wait(20) for reply in fake.in_progress.all_of(fake.user))
    with fake.store.connection.write() as db:  # deleting one by one takes long
        for table in ("conversations", "presets", "projects", "keys"):
            db.execute(f"DELETE FROM {table}")
    fake.store.keys.set_access("off")
    fake.store.users.choose(fake.user, drafts_from="all")
    fake.store.users.set_notes(fake.user, "")
    fake.changes.notify(fake.user)
    return fake


@pytest.fixture
def visitor(chromium: Browser, server: tuple[FakeService, str], service: FakeService) -> Iterator[Chat]:
    """Somebody who has not opened the page yet, wide and light; no test may leave the app's origin."""
    with driving.visiting(chromium, server[1]) as visitor:
        yield visitor
        assert visitor.foreign == []


@pytest.fixture
def chat(visitor: Chat) -> Chat:
    """The page, opened."""
    visitor.open()
    return visitor


@pytest.fixture
def second(chromium: Browser, server: tuple[FakeService, str], service: FakeService) -> Iterator[Chat]:
    """Another tab of the same user."""
    with driving.visiting(chromium, server[1]) as visitor:
        yield visitor
