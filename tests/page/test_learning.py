"""Writing while idle, in a real browser: allowed in plain words, seen at work, stopped by typing, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, expect

from hierchat.chat import idle_generation as idle
from hierchat.chat.service import ChatService
from hierchat.store import LOCAL_USER, IdleSettings, Store
from tests.idle.conftest import ASKED, Calm, slot
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def state(chat: Chat) -> Locator:
    return chat.page.locator("#hc-learning-state")


def allow(chat: Chat) -> Locator:
    return chat.page.get_by_label("The model may write for itself")


def press(chat: Chat, label: str) -> None:
    state(chat).get_by_role("button", name=label, exact=True).click()


def test_deleting_asks_first_and_insights_count(chat: Chat, service: FakeService) -> None:
    user = service.store.users.ensure(LOCAL_USER)
    service.idle.wrote(user, 2)
    chat.open("?view=insights")
    expect(chat.page.locator("#hc-insights-machine")).to_contain_text("100 tokens for itself")
    chat.view("Settings")
    press(chat, "Delete what it wrote…")
    question = chat.page.get_by_role("group", name="Delete what was written?")
    question.get_by_role("button", name="Keep").click()
    expect(question).to_have_count(0)
    press(chat, "Delete what it wrote…")
    question.get_by_role("button", name="Delete").click()
    expect(chat.page.locator("#hc-live")).to_contain_text("Deleted: all that models wrote for themselves.")
    expect(state(chat)).to_have_text("")
    assert service.store.generated.size(user).texts == 0


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ChatService, str]]:
    """A tiny model that writes as soon as it may, over the real service."""
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))
    monkeypatch.setattr(idle, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(idle, "Machine", Calm)
    monkeypatch.setattr(idle, "STREAMS", 2)
    # Long enough to be seen: each conversation again and again, with other dice.
    many = [
        replace(one, key=f"{one.key} {seed}", seed=seed, temperature=1.0)
        for seed in range(4_000)
        for one in ASKED
    ]
    monkeypatch.setattr("hierchat.chat.prompts.shipped_scripts", lambda: many)
    monkeypatch.setattr(idle, "shipped_scripts", lambda: many)
    with Store.open(tmp_path / "real.db") as store:
        service = ChatService(store, slot())
        with driving.serving(service) as address:
            yield service, address
        service.close()


def test_switched_on_seen_at_work_stopped_by_typing_deleted(
    chromium: Browser, real: tuple[ChatService, str]
) -> None:
    service, address = real
    store, user = service.store, service.store.users.ensure(LOCAL_USER)
    store.users.set_idle_settings(user, IdleSettings(False, 0.0, 500_000))
    with driving.visiting(chromium, address) as chat:
        chat.open("?view=settings")
        allow(chat).check()
        expect(state(chat)).to_contain_text("Writing now, 2 replies at once")
        expect(state(chat)).to_contain_text("It wrote")
        chat.shot("learning-writing")
        store.users.set_idle_settings(
            user, IdleSettings(True, 60.0, 500_000)
        )  # it is to be seen that it has stopped
        chat.open()
        chat.page.locator("#hc-box textarea").press_sequentially("Wh")
        chat.view("Settings")
        expect(state(chat)).to_contain_text(
            "Waiting. It begins when nobody has asked for a reply for 60 minutes."
        )
        allow(chat).uncheck()
        expect(state(chat).get_by_role("status")).to_have_count(0)
        there = store.generated.size(user)
        texts = [
            text for script in ("k0 0", "k4 0") for text in store.generated.texts(user, "key of tiny", script)
        ]
        bytes_there = [np.array(text.ids, "<i4").tobytes() for text in texts if len(text.ids) > 6]
        on_disk = b"".join(path.read_bytes() for path in store.path.parent.glob("real.db*"))
        assert bytes_there
        assert all(one in on_disk for one in bytes_there)
        chat.open("?view=settings")
        expect(state(chat)).to_contain_text(f"It wrote {there.tokens:,} tokens")
        press(chat, "Delete what it wrote…")
        chat.page.get_by_role("group", name="Delete what was written?").get_by_role(
            "button", name="Delete"
        ).click()
        expect(state(chat)).to_have_text("")
        on_disk = b"".join(path.read_bytes() for path in store.path.parent.glob("real.db*"))
        assert not any(one in on_disk for one in bytes_there)
        assert chat.foreign == []
