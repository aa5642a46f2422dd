"""A chat over a model that a stand-in of a server computes, with our drafter or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hierchat.chat.service import ChatService
from hierchat.models.catalogue import Catalogue, EngineElsewhere, ModelEntry, OpenAI
from hierchat.runtime.slot import ModelHost
from hierchat.store import Store
from tests.engine.remote.drafter import TOKEN, Drafter
from tests.engine.remote.drafter import serving as drafting
from tests.testing.openai_server import Script, serving
from tests.testing.tiny_chat import settle

from .conftest import Talk


def host_of(openai: OpenAI, **said: Any) -> ModelHost:
    """`said`: of the model's entry, beside its engine."""
    entry = ModelEntry(name="far", engine=EngineElsewhere(openai=openai), **said)
    host = ModelHost(Catalogue(models={"far": entry}, default="far"))
    host.start("far")
    return settle(host)


@contextmanager
def talking(store: Store, script: Script, drafter: Drafter | None = None, **named: Any) -> Iterator[Talk]:
    """A talk of Ann's; `named`: what else is said of the server."""
    with ExitStack() as running:
        url = running.enter_context(serving(script))
        if drafter:
            named |= {"drafter": running.enter_context(drafting(drafter)), "drafter_token": TOKEN}
        host = host_of(OpenAI(url=url, **named))
        assert host.status.phase == "ready", host.status.message
        user = store.users.ensure("ann")
        service = ChatService(store, host)
        running.callback(service.close)
        yield Talk(service, user, store.chats.create(user))
