"""A model that answers in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from threading import Event
from typing import Any, TextIO

from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.chat.settings import reply_settings
from hierchat.models.fetch.bring import status
from hierchat.models.memory import best_device
from hierchat.runtime.host import ModelHost
from hierchat.runtime.prompt import Said
from hierchat.store import DraftsFrom
from hierchat.terminal import loading
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.talk import require

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before huggingface_hub is imported, which reads it once


class OwnModel:
    """The model of a service. While another one is loaded, what is done stands on `out`."""

    def __init__(self, service: ChatService, out: TextIO = sys.stderr) -> None:
        self._service = service
        self._out = out

    @property
    def host(self) -> ModelHost:
        """It holds the model."""
        return self._service.host

    @property
    def name(self) -> str:
        return self.host.hosted.name if self.host.hosted else ""

    @property
    def place(self) -> str:
        return ""

    def names(self) -> list[str]:
        return self.host.names

    def about(self, name: str) -> str:
        present = status(self.host.catalogue.entry(name), best_device()).present
        return "" if present else "not on this machine: it is fetched first"

    def choose(self, name: str) -> None:
        require(name, self.names())
        if name == (before := self.name):
            return
        self.host.start(name)
        try:
            loading.wait(self.host, self._out)
        except KeyboardInterrupt:
            if not before:
                raise
            self.host.start(before)
            loading.wait(self.host, self._out)
            raise TerminalError(f"Stopped. {before} goes on answering.") from None
        if self.name != name:
            raise TerminalError(self.host.status.message or f"{name} could not be loaded.")

    def complete(
        self, user: int, said: Sequence[Said], sampling: Mapping[str, Any], stop: Event
    ) -> Generator[Frame, None, None]:
        """A reply that is not stored. No other chat of the user drafts it."""
        allowed: DraftsFrom = "none" if self._service.store.drafts_from(user) == "none" else "chat"
        yield from self._service.complete(said, reply_settings(sampling), user, stop, allowed)
