"""A hierchat whose model is another hierchat's endpoint."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from hierchat.chat.in_progress import Question
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.api.scripted import Served, serving
from tests.testing.tiny_chat import settle

SETTINGS = GenerationSettings(max_new_tokens=24, temperature=1.0, seed=7)


def test_the_words_are_those_that_the_other_one_writes(tiny_served: Served, tmp_path: Path) -> None:
    openai = OpenAI(url=tiny_served.base)
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai))
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    assert settle(slot).status.message == ""
    near = list(
        tiny_served.service.completions.complete(
            [PromptMessage("user", "hello")], SETTINGS, 1, threading.Event()
        )
    )[-1]
    with Store.open(tmp_path / "far.db") as store:
        user = store.users.ensure("ann")
        conversation = store.chats.create(user)
        service = ChatService(store, slot)
        *_, far = service.send(user, Question(conversation, None, "hello"), SETTINGS, threading.Event())
        service.close()
    assert far.text == near.text
    assert far.finish == near.finish
    assert far.figures.tokens == near.figures.tokens
    assert far.figures.speedup is None


def test_what_needs_tokens_is_refused(tiny_served: Served, tmp_path: Path) -> None:
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=OpenAI(url=tiny_served.base)))
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    with serving(tmp_path, settle(slot)) as served:
        for path, body in (
            ("v1/completions", {"prompt": "Once"}),
            ("tokenize", {"content": "Once"}),
            ("detokenize", {"tokens": [1]}),
        ):
            answer = httpx.post(served.address + path, json=body, timeout=60)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith("far is computed by another server")
        asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        near, answer = (
            httpx.post(f"{base}/chat/completions", json=asked, timeout=60)
            for base in (tiny_served.base, served.base)
        )
        assert answer.json()["usage"]["prompt_tokens"] == near.json()["usage"]["prompt_tokens"]
        assert answer.json()["usage"]["completion_tokens"] == 8
