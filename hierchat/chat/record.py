"""Writes a reply into the store while it grows, so that a crash loses at most a second of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from hierchat import logs
from hierchat.chat.frames import Frame
from hierchat.chat.reply import ReplyStream
from hierchat.chat.statistics import plan_of
from hierchat.engine.engine import LearnsElsewhere
from hierchat.models.progress import ModelError
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import NewTurn, Store, StoreError
from hierchat.store.records import FinalState

# Has engines elsewhere forget what users delete here.


LOOK_SECONDS = 1.0
"""Between two looks for what was deleted."""

log = logging.getLogger(__name__)


def forget_deleted(store: Store, engine: LearnsElsewhere) -> bool:
    """Have it forget all that was deleted since; whether nothing of that is left there."""
    while told := store.outbox.pending(engine.place):
        by_user = defaultdict(list)
        for one in told:
            by_user[one.user].append(one.reply)
        try:
            for user, replies in by_user.items():
                engine.forget(user, replies)
        except ModelError as error:
            log.info("a drafter could not be told what was deleted: %s", logs.kind(error))
            return False
        store.outbox.remove(told)
    return True


class Forgetting:
    """Looks once a second, while the loaded model is one that learns elsewhere."""

    def __init__(self, store: Store, slot: ModelSlot) -> None:
        self._store = store
        self._slot = slot
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
        engine = self._slot.model.engine if self._slot.model else None
        if isinstance(engine, LearnsElsewhere):
            try:
                forget_deleted(self._store, engine)
            except StoreError as error:  # another program holds the file: it is looked at again
                log.info("what was deleted could not be looked up: %s", logs.kind(error))


WRITE_SECONDS = 0.5


class Record:
    """One reply and its place in the store."""

    def __init__(
        self,
        store: Store,
        reply: ReplyStream,
        user_id: int,
        conversation_id: int,
        question: int,
        resumed: int | None = None,
        system_prompt: str | None = None,
    ) -> None:
        """`resumed`: the message of the reply that is continued; `system_prompt`: what the chat sets."""
        self.reply = reply
        self._store = store
        self.question = question
        self._place = (user_id, conversation_id, question)
        self._resumed = resumed
        self._system_prompt = system_prompt
        self._written = len(reply.statistics.tokens)

    def frames(self, stop: threading.Event, *, measure: bool) -> Generator[Frame, None, None]:
        """The reply's frames, each with its message id. However the reader leaves, what was written stands."""
        reply = self.reply
        message_id = self._begin()
        self._tell(message_id)
        written = time.monotonic()
        failed = True
        last: Frame | None = None
        try:
            with closing(reply.frames(stop, measure=measure)) as frames:
                for frame in frames:
                    last = replace(frame, message_id=message_id)
                    if frame.phase == "done":
                        break
                    if time.monotonic() - written >= WRITE_SECONDS:
                        self._append(message_id)
                        written = time.monotonic()
                    yield last
            failed = False
        except GeneratorExit:
            failed = False  # the reader left: that is a stop
            raise
        finally:
            try:
                self._append(message_id)
            except StoreError:  # the reply ends with what was written before
                failed = True
                reply.statistics.cut(self._written)
                raise
            finally:
                self._finish(message_id, failed)
        if last:
            yield last

    def frames_alone(self, stop: threading.Event, *, measure: bool) -> Generator[Frame, None, None]:
        """The same of a reply of which nothing is to be stored, or learned elsewhere."""
        self.reply.learns = False
        self._tell(None)
        return self.reply.frames(stop, measure=measure)

    def count_wait(self, sent: float, waited_seconds: float, loading_seconds: float) -> None:
        """Pass the times of waiting on to the reply."""
        self.reply.count_wait(sent, waited_seconds, loading_seconds)

    def frame(self) -> Frame:
        """All of it so far."""
        return self.reply.frame()

    def _begin(self) -> int:
        if self._resumed is not None:
            self._store.replies.resume(self._place[0], self._resumed)
            return self._resumed
        reply, settings = self.reply, self.reply.settings
        turn = NewTurn(
            reply.model.name,
            reply.model.model_key,
            settings.model_dump(mode="json"),
            settings.seed,
            reply.drafter is not None
            or (isinstance(reply.model.engine, LearnsElsewhere) and reply.drafts_from != "none"),
            self._system_prompt,
        )
        return self._store.replies.begin(*self._place, turn)

    def _tell(self, message_id: int | None) -> None:
        """Have an engine that keeps replies elsewhere draft from the user's, once nothing is left there of what was
        deleted, and keep this one, if it is stored."""
        engine, user_id = self.reply.model.engine, self._place[0]
        if not isinstance(engine, LearnsElsewhere) or self.reply.drafts_from != "all":
            return
        if forget_deleted(self._store, engine):
            self.reply.named = (
                (self._store.outbox.name_of(user_id), "")
                if message_id is None
                else self._store.outbox.add(engine.place, user_id, message_id, self.reply.statistics.begun)
            )

    def _finish(self, message_id: int, failed: bool) -> None:
        statistics = self.reply.statistics
        state: FinalState = "complete"
        if failed:
            state = "interrupted"
            statistics.finish = "error"
        elif statistics.finish in (None, "stopped"):
            state = "stopped"
            statistics.finish = "stopped"
        statistics.plan = plan_of(self.reply.drafter)
        self._store.replies.finish(message_id, statistics.text, state, statistics.record())

    def _append(self, message_id: int) -> None:
        statistics, origins = self.reply.statistics, self.reply.origins
        new = slice(self._written, len(statistics.tokens))
        if statistics.tokens[new]:
            found = zip(statistics.matches[new], statistics.chances[new], strict=True)
            self._store.replies.append(
                message_id,
                statistics.text,
                statistics.tokens[new],
                statistics.sources[new],
                [origins.of(match, chance) for match, chance in found] if origins else (),
            )
            self._written = len(statistics.tokens)
