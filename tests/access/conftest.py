"""Servers that all tests of this folder share: with a login, and without."""

from collections.abc import Iterator

import pytest

from tests.testing import browser as driving
from tests.testing.fake_service import make
from tests.testing.raw import ask

ACCOUNT = ("me", "a long password")
RIGHT = {"username": "me", "password": "a long password"}
PAGE = {"Accept": "text/html,*/*"}


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page behind the login of ACCOUNT."""
    with driving.serving(make(tmp_path_factory.mktemp("login")), ACCOUNT) as served:
        yield served


@pytest.fixture(scope="session")
def open_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page without a login."""
    with driving.serving(make(tmp_path_factory.mktemp("open"))) as served:
        yield served


def log_in(address: str) -> dict[str, str]:
    answer = ask(address, "POST", "/login", form=RIGHT)
    assert answer.status == 200
    return {"Cookie": answer.cookie}
