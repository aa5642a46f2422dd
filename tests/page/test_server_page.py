"""The page over a model that a server computes."""

from collections.abc import Iterator

import pytest

from hierchat.chat.service import ChatService
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import Store
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import settle
from tests.testing.visitor import Visitor

KEY = "a-key-that-no-page-shows"


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm", "max_model_len": 4096}]
    return Script(models=models, key=KEY, counts=True, usage={"prompt_tokens": 7, "completion_tokens": 6})


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


def service(store: Store, url: str) -> ChatService:
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=OpenAI(url=url, key=KEY)))
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    assert settle(slot).status.phase == "ready", slot.status.message
    return ChatService(store, slot)


def test_any_server(store: Store, script: Script, url: str) -> None:
    serves = service(store, url)
    page = Visitor(serves)
    page.ask("Hello")
    said = page.details()
    for part in ("Hello there.", "While writing", "Written by far"):
        assert part in said
    for figure in ("hc-speedup", "hc-shares", "hc-proof"):
        assert figure not in page.html("hc-thread")
    script.breaks = True
    assert page.ask("More").count("Hello there.") == 2
    assert "broke off in mid-reply" in page.says("hc-live")
    assert KEY not in "".join(map(str, page.all()))
    page.give("Compare", True, "change")
    assert page.ask("Both").endswith("Both Not answered Answer Edit Copy")
    assert "drafts by itself or not at all" in page.says("hc-live")
    serves.close()
