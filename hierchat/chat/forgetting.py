"""Has engines elsewhere forget what users delete here."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict

from hierchat import logs
from hierchat.engine.engine import LearnsElsewhere
from hierchat.models.errors import ModelError
from hierchat.runtime.host import ModelHost
from hierchat.store import Store, StoreError

LOOK_SECONDS = 1.0
"""Between two looks for what was deleted."""

log = logging.getLogger(__name__)


def forget_deleted(store: Store, engine: LearnsElsewhere) -> bool:
    """Have it forget all that was deleted since; whether nothing of that is left there."""
    while told := store.to_forget(engine.place):
        by_user = defaultdict(list)
        for one in told:
            by_user[one.user].append(one.reply)
        try:
            for user, replies in by_user.items():
                engine.forget(user, replies)
        except ModelError as error:
            log.info("a drafter could not be told what was deleted: %s", logs.kind(error))
            return False
        store.drafter_forgot(told)
    return True


class Forgetting:
    """Looks once a second, while the loaded model is one that learns elsewhere."""

    def __init__(self, store: Store, host: ModelHost) -> None:
        self._store = store
        self._host = host
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forgetting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell what is deleted by now; before the store is closed."""
        self._closed.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        engine = self._host.hosted.engine if self._host.hosted else None
        if isinstance(engine, LearnsElsewhere):
            try:
                forget_deleted(self._store, engine)
            except StoreError as error:  # another program holds the file: it is looked at again
                log.info("what was deleted could not be looked up: %s", logs.kind(error))
