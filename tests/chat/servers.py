"""A chat over a model that a stand-in of a server computes, with our drafter or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hierchat.chat.service import ChatService
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import Store
from tests.engine.remote.drafter import TOKEN, Drafter
from tests.engine.remote.drafter import serving as drafting
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import settle

from .conftest import Talk


def slot_over(openai: OpenAI, **said: Any) -> ModelSlot:
    """`said`: of the model's entry, beside its engine."""
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai), **said)
    slot = ModelSlot(Catalogue(models={"far": entry}, default="far"))
    slot.start("far")
    return settle(slot)


@contextmanager
def talking(store: Store, script: Script, drafter: Drafter | None = None, **named: Any) -> Iterator[Talk]:
    """A talk of Ann's; `named`: what else is said of the server."""
    with ExitStack() as running:
        url = running.enter_context(serving(script))
        if drafter:
            named |= {"drafter": running.enter_context(drafting(drafter)), "drafter_token": TOKEN}
        slot = slot_over(OpenAI(url=url, **named))
        assert slot.status.phase == "ready", slot.status.message
        user = store.users.ensure("ann")
        service = ChatService(store, slot)
        running.callback(service.close)
        yield Talk(service, user, store.chats.create(user))
