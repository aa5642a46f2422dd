"""Hurried steps in two tabs, while every answer of the server is late: no screen is wrong, and nothing is lost."""

from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hierchat.chat.service import ChatService
from hierchat.store import Store
from tests.page.race_walk import SCRIPT, Walk, served
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.late import Late
from tests.testing.tiny_chat import ready_slot

pytestmark = pytest.mark.browser


def walked(chromium: Browser, folder: Path, seed: int, steps: int) -> None:
    late, made = Late(seed), served(seed)
    with (
        Store.open(folder / "races.db") as store,
        closing(ChatService(store, ready_slot(lambda name, report: made))) as service,
        driving.serving(service, before=late.before) as address,
    ):
        for title in ("Amsel", "Birke", "Cello", "Dachs", "Eibe"):
            stored_chat(store, title, 2)
        context = chromium.new_context()
        context.add_init_script(path=SCRIPT)
        try:
            done = Walk(seed, context, address, service, late).go(steps)
            print(f"seed {seed}: {done.total()} steps, {dict(done)}")
        finally:
            context.close()


@pytest.mark.large  # two of fifteen short walks on a busy machine failed (docs/log.md)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 6))
def test_no_screen_of_many_is_wrong(chromium: Browser, tmp_path: Path, seed: int) -> None:
    walked(chromium, tmp_path, seed, 500)
