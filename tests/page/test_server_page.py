"""The page over a model that a server computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hierchat.chat.service import ChatService
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.page.status import model_proof
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import Store
from tests.engine.remote.drafter import TOKEN, Drafter
from tests.engine.remote.drafter import serving as drafting
from tests.testing import browser as driving
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import settle

KEY = "a-key-that-no-page-shows"


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm", "max_model_len": 4096}]
    return Script(models=models, key=KEY, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


def service(store: Store, url: str, drafter: int | None = None) -> ChatService:
    openai = OpenAI(url=url, key=KEY, drafter=drafter, drafter_token=TOKEN if drafter else None)
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai))
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    assert settle(slot).status.phase == "ready", slot.status.message
    return ChatService(store, slot)


@pytest.mark.browser
def test_any_server(chromium: Browser, tmp_path: Path, script: Script, url: str) -> None:
    with Store.open(tmp_path / "chat.db") as store:
        serves = service(store, url)
        with driving.serving(serves) as address, driving.visiting(chromium, address) as chat:
            chat.open()
            assert "Hello there." in chat.ask("Hello")
            expect(chat.replies.last).to_contain_text("6 tokens in")
            expect(chat.page.locator(".hc-speedup")).to_have_count(0)
            expect(chat.page.locator(".hc-shares")).to_have_count(0)
            script.breaks = True
            chat.send("More")
            broken = chat.page.get_by_text("broke off in mid-reply")
            expect(broken).to_be_visible()
            expect(chat.page.locator("#hc-chat").get_by_text("Hello there.")).to_have_count(2)
            script.breaks = False
            assert "Hello there." in chat.ask("Are you there again?")
            assert KEY not in chat.page.content()
            chat.replies.last.locator("summary").first.click()
            expect(chat.replies.last).to_contain_text("Speed-up\u2013")
            expect(chat.page.locator(".hc-proof")).to_have_count(0)
            chat.page.get_by_label("Compare").check()
            chat.send("Both")
            expect(chat.page.get_by_text("drafts by itself or not at all")).to_be_visible()
            expect(chat.box).to_have_value("Both")
        serves.close()


@pytest.mark.browser
def test_vllm_with_our_drafter(chromium: Browser, tmp_path: Path, script: Script, url: str) -> None:
    script.vocabulary = {11: "He", 12: "l", 13: "lo", 14: " th", 15: "ere", 16: "."}
    with Store.open(tmp_path / "chat.db") as store, drafting(Drafter()) as port:
        serves = service(store, url, port)
        with driving.serving(serves) as address, driving.visiting(chromium, address) as chat:
            chat.open()
            assert "Hello there." in chat.ask("Hello")
            expect(chat.replies.last.locator(".hc-shares")).to_contain_text("your earlier chats")
            assert "it need not be the same one" in model_proof(serves.slot.status)
            chat.replies.last.get_by_role("button", name="Sources", exact=True).click()
            expect(chat.words.last.locator(".hc-src-history").first).to_have_text("llo")
            expect(chat.words.last.locator(".hc-src-context").first).to_have_text("ere")
            assert "".join(chat.words.last.locator(".hc-run").all_inner_texts()) == "Hello there."
            script.finish = "length"
            chat.ask("More")
            script.finish, script.pieces = "stop", (" And so ", "on.")
            chat.replies.last.get_by_role("button", name="Continue", exact=True).click()
            expect(chat.words.last).to_contain_text("Hello there. And so on.", timeout=driving.PATIENCE_MS)
            chat.page.get_by_label("Compare").check()
            chat.send("Both")
            verdict = chat.page.locator(".hc-verdict")
            expect(verdict).to_contain_text("Word for word the same", timeout=driving.PATIENCE_MS)
            expect(chat.page.locator(".hc-result")).to_contain_text("Without drafts")
        serves.close()
