"""Two users over one server, and a secret of one of them in every place that can hold one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hierchat.access.login_sessions import LoginSessions
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.store import Store
from tests.isolation.visitor import Visitor
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService, make
from tests.testing.secrets import SECRET, Secrets

ACCOUNTS = (("ann", "the password of ann"), ("ben", "the password of ben"))
"""The owner, and another one."""


@dataclass
class Place:
    """A server with both users logged in."""

    service: FakeService
    address: str
    log_ins: LoginSessions
    visitors: dict[str, Visitor]

    @property
    def store(self) -> Store:
        return self.service.store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with served(tmp_path_factory.mktemp("isolation")) as place:
        yield place


@contextmanager
def served(folder: Path) -> Iterator[Place]:
    """A place of its own, below this folder."""
    service = make(folder)
    service.script.seconds = 0
    service.script.reply = "Nothing."
    log_ins = driving.log_ins_of(service.store, *ACCOUNTS)
    with (
        pytest.MonkeyPatch.context() as patch,
        driving.files_wait_in(folder / "transfer"),
        driving.serving(service, log_ins=log_ins) as address,
    ):
        patch.setenv("HIERCHAT_DATA", str(folder / "data"))
        yield Place(
            service, address, log_ins, {name: Visitor(address, name, word) for name, word in ACCOUNTS}
        )


def writing(service: FakeService, secrets: Secrets) -> tuple[ReplyInProgress, ReplyInProgress]:
    """A reply in progress in the secret chat, and a message that waits behind it; both end by their stop event."""
    release = threading.Event()
    first = ReplyInProgress(
        secrets.user, secrets.ids["chat"], text=f"First {SECRET}", below=secrets.ids["edited"]
    )
    second = ReplyInProgress(secrets.user, secrets.ids["chat"], text=f"Next {SECRET}")

    def start(stop: threading.Event) -> Iterator[Any]:
        while not stop.wait(0.05) and not release.is_set():
            pass
        yield from ()

    assert service.in_progress.begin(first, start)
    assert not service.in_progress.begin(second, start, waits=True)
    return first, second
