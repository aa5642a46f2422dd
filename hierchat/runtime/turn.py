"""A reply's turn at the model: a place in the queue, then a share of the model until the reply has ended.

The store counts turns too: a turn is one model reply there. This is the same reply, seen from the model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType

from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.runtime.host import ModelHost
from hierchat.runtime.hosted import Hosted


class NoModel(Exception):
    """No model can answer. The message is for the page."""


class ModelTurn:
    """Use it in a with statement; at its end the next reply's turn comes. Raises QueueFull."""

    def __init__(self, host: ModelHost, stop: threading.Event, *, alone: bool = False) -> None:
        """`alone`: no other reply uses the model then, as where its speed is compared."""
        self.hosted: Hosted | None = None
        """The model, once this turn has come."""
        self.waited_seconds = 0.0
        """How long other replies came before,"""
        self.loading_seconds = 0.0
        """and how long no model was there, as while one is loaded."""
        self._host = host
        self._stop = stop
        self._ticket = host.scheduler.join(shares=not alone)

    def waiting(self) -> Iterator[int]:
        """How many replies come before, about ten times a second, until `hosted` is there or `stop` is set.

        Raises NoModel.
        """
        looked = time.monotonic()
        while not self._stop.is_set():
            yield (ahead := self._ticket.ahead)
            taken = self._ticket.take()
            passed, looked = time.monotonic() - looked, time.monotonic()
            if ahead:
                self.waited_seconds += passed
            else:
                self.loading_seconds += passed
            if not taken:
                continue
            self.hosted = self._host.hosted
            if self.hosted is not None:
                return
            status = self._host.status
            if status.phase in ("none", "failed"):
                raise NoModel(
                    status.message or "No model is loaded. Choose one above, or download one under Models."
                )
            self._ticket.step_aside()  # for what loads the model
            self._stop.wait(POLL_SECONDS)

    def __enter__(self) -> ModelTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ticket.leave()
