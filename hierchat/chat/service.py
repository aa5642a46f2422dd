"""The chat: takes a message, yields the reply's frames, and writes all of it down as it grows."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from hierchat.chat.compare import CannotCompare, compare_arms
from hierchat.chat.frames import CompareFrame, Figures, Frame, Span
from hierchat.chat.making import ReplyMaker
from hierchat.chat.plan import PlanView, plan_view
from hierchat.chat.record import Record
from hierchat.chat.reply import Reply, plain_decode
from hierchat.chat.reply_thread import in_reply_thread
from hierchat.chat.statistics import ReplyStatistics, stored_figures, text_spans
from hierchat.config import MOST_TOKENS, GenerationSettings
from hierchat.engine.decoding import PromptTooLong
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.runtime.costs import keep_costs
from hierchat.runtime.draft_index.history import Histories
from hierchat.runtime.host import ModelHost
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.learned import Learned
from hierchat.runtime.prompt import MessageTooLong, Said
from hierchat.store import Message, Store, StoreError

POLL_SECONDS = 0.1
CLOSE_SECONDS = 2.0
"""A reply that is still being written after so long keeps what was learned up to half a minute before."""
TROUBLE = (CannotCompare, MessageTooLong, PromptTooLong, BrokenLogits, StoreError, MemoryError, RuntimeError)
"""What can go wrong in a reply and has a message for the page."""


class NotBegun(Exception):
    """A reply cannot begin; the message is for the page."""


class ChatService:
    """Conversations over one store and one host. One reply at a time: others wait for the engine."""

    def __init__(self, store: Store, host: ModelHost) -> None:
        self.store = store
        self.host = host
        self._histories = Histories(store)
        self._learned = Learned(store)
        self._maker = ReplyMaker(store, self._histories, self._learned)
        host.costs = store

    def close(self) -> None:
        """Keep what was learned; before the store is closed."""
        if self.host.engine_lock.acquire(timeout=CLOSE_SECONDS):
            try:
                self._keep(self.host.hosted, now=True)
            finally:
                self.host.engine_lock.release()
        self._histories.close()

    def send(
        self,
        user_id: int,
        conversation_id: int,
        parent_id: int | None,
        text: str,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> Generator[Frame, None, None]:
        """Store a user message below `parent_id` (None: first) and answer it. Raises NotFound at once.

        Also raises what keeps it from being answered: MessageTooLong, NotBegun, StoreError. Nothing is stored then,
        nor where it was stopped before its turn: then no frame follows those in phase "waiting".
        """
        self.store.conversation(user_id, conversation_id)
        begin = partial(self._ask, user_id, conversation_id, parent_id, text, settings, stop)
        yield from self._answer(begin, stop)

    def regenerate(
        self, user_id: int, user_message_id: int, settings: GenerationSettings, stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """Another reply to a user message, with a new seed where it is sampled. Raises as `send`."""
        question = self.store.message(user_id, user_message_id)
        if settings.temperature > 0:
            settings = GenerationSettings(**{**settings.model_dump(), "seed": secrets.randbits(32)})
        yield from self._answer(partial(self._answer_again, user_id, question, settings, stop), stop)

    def resume(
        self, user_id: int, message_id: int, more: int, stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """Go on writing a reply that was cut, with its own settings and up to `more` tokens: the same as it would
        have been with a higher limit. Raises as `send`."""
        reply = self.store.message(user_id, message_id)
        try:
            yield from self._answer(partial(self._take_up, user_id, reply, more, stop), stop)
        finally:
            self._histories.changed(user_id, message_id)

    def compare(
        self,
        user_id: int,
        conversation_id: int,
        parent_id: int | None,
        text: str,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> Generator[CompareFrame, None, None]:
        """Answer a message twice, vanilla and speculative in random order; the speculative reply is stored.

        Raises as `send`.
        """
        self.store.conversation(user_id, conversation_id)
        waiting = Frame("waiting")
        yield CompareFrame({"vanilla": waiting, "speculative": waiting}, None)
        with self._engine(stop) as hosted:
            if hosted is None:
                return
            record = self._ask(user_id, conversation_id, parent_id, text, settings, stop, hosted)
            speculative = record.reply
            vanilla = replace(
                speculative,
                statistics=ReplyStatistics(partial(plain_decode, hosted), settings.stop),
                drafter=None,
            )
            try:
                run = partial(compare_arms, vanilla, speculative, record, stop)
                with closing(in_reply_thread(run, stop)) as frames:
                    yield from frames
            except TROUBLE as error:
                yield CompareFrame(
                    {"vanilla": _failed(error, vanilla), "speculative": _failed(error, speculative)}, None
                )
            finally:
                self._keep(hosted)

    def spans(self, user_id: int, message_id: int) -> list[Span]:
        """Runs of a stored reply by source; empty where its model is not loaded now."""
        turn, hosted = self.store.turn(user_id, message_id), self.host.hosted
        if turn is None or hosted is None or turn.begun.model_key != hosted.model_key:
            return []
        return text_spans(
            self.store.reply_tokens(user_id, message_id),
            self._sources(user_id, message_id),
            partial(plain_decode, hosted),
        )

    def figures(self, user_id: int, message_id: int) -> Figures | None:
        """Figures of a stored reply; None where there are none."""
        turn = self.store.turn(user_id, message_id)
        return stored_figures(turn.figures, turn.reply_tokens) if turn and turn.figures else None

    def plan(self) -> PlanView | None:
        """The hierarchy in force, at the length of the last context; None where the model has no draft models."""
        hosted = self.host.hosted
        return plan_view(hosted) if hosted else None

    def _answer(
        self, begin: Callable[[Hosted], Record], stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """The frames of the reply that `begin` makes once the engine is free."""
        last = Frame("waiting")
        yield last
        with self._engine(stop) as hosted:
            if hosted is None:
                return
            record = begin(hosted)
            try:
                with closing(in_reply_thread(partial(record.frames, stop, measure=True), stop)) as frames:
                    for last in frames:
                        yield last
            except TROUBLE as error:
                yield _failed(error, record.reply, last.message_id)
            finally:
                self._keep(hosted)

    def _ask(
        self,
        user_id: int,
        conversation_id: int,
        parent_id: int | None,
        text: str,
        settings: GenerationSettings,
        stop: threading.Event,
        hosted: Hosted,
    ) -> Record:
        """A reply to a new message, which is stored once nothing more can keep it from being answered."""
        path = [] if parent_id is None else self.store.messages(user_id, conversation_id, parent_id)
        said = [*self._maker.said(hosted, user_id, path), Said("user", text)]
        reply = self._maker.reply(hosted, user_id, said, settings, settings, stop)
        question = self.store.add_message(user_id, conversation_id, parent_id, "user", text)
        return Record(self.store, reply, user_id, conversation_id, question)

    def _answer_again(
        self,
        user_id: int,
        question: Message,
        settings: GenerationSettings,
        stop: threading.Event,
        hosted: Hosted,
    ) -> Record:
        path = self.store.messages(user_id, question.conversation_id, question.id)
        said = self._maker.said(hosted, user_id, path)
        reply = self._maker.reply(hosted, user_id, said, settings, settings, stop, before=question.id)
        return Record(self.store, reply, user_id, question.conversation_id, question.id)

    def _take_up(
        self, user_id: int, message: Message, more: int, stop: threading.Event, hosted: Hosted
    ) -> Record:
        turn, question = self.store.turn(user_id, message.id), message.parent_id
        if turn is None or question is None or turn.begun.model_key != hosted.model_key:
            writer = turn.begun.model if turn else "Another program"
            raise NotBegun(f"{writer} wrote this reply. Only the same model can continue it.")
        tokens = self.store.reply_tokens(user_id, message.id)
        if not tokens or tokens[-1] in hosted.end_ids:
            raise NotBegun("There is nothing to continue: this reply has come to its end.")
        before = GenerationSettings(**turn.begun.settings)
        most = min(len(tokens) + more, MOST_TOKENS)
        settings = GenerationSettings(**{**before.model_dump(), "max_new_tokens": most})
        path = self.store.messages(user_id, message.conversation_id, question)
        said = self._maker.said(hosted, user_id, path)
        # The prompt is the one that the reply began with, and so is the room that was left for it.
        reply = self._maker.reply(hosted, user_id, said, before, settings, stop, before=question)
        if len(reply.prompt_ids) + len(tokens) >= hosted.prompts.context_length:
            raise NotBegun("The context window is full. Ask for the rest in a new chat.")
        reply.statistics.resume(tokens, self._sources(user_id, message.id), turn.figures)
        return Record(self.store, reply, user_id, message.conversation_id, question, resumed=message.id)

    def _sources(self, user_id: int, message_id: int) -> list[str]:
        """The source of each token of a stored reply."""
        return [span.source for span in self.store.spans(user_id, message_id) for _ in range(span.length)]

    @contextmanager
    def _engine(self, stop: threading.Event) -> Iterator[Hosted | None]:
        """The loaded model, for one reply alone; None when the user gave up. Raises NotBegun where there is none."""
        while not stop.is_set():
            phase = self.host.status.phase
            if phase in ("none", "failed"):
                raise NotBegun(self.host.status.message or "No model is loaded. Choose one above.")
            if self.host.answers and self.host.engine_lock.acquire(timeout=POLL_SECONDS):
                try:
                    if (hosted := self.host.hosted) is not None:  # it has not left in this moment
                        yield hosted
                        return
                finally:
                    self.host.engine_lock.release()
            time.sleep(POLL_SECONDS)
        yield None

    def _keep(self, hosted: Hosted | None, *, now: bool = False) -> None:
        """Write down what was learned, if it is time."""
        if self._learned.save(now=now) and hosted and hosted.is_local and hosted.machine:
            keep_costs(hosted.local.latency, hosted.model_key, hosted.machine, self.store)
            if hosted.levels:
                hosted.levels.keep(self.store)


def _failed(error: Exception, reply: Reply | None = None, message_id: int | None = None) -> Frame:
    """The last frame of a reply that could not go on: what it has so far, and why it ends there."""
    frame = reply.frame("done") if reply else Frame("done")
    if frame.finish not in (None, "error"):  # the other arm of a comparison had ended before
        return frame
    notice = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        notice = "Memory ran out. Close other programs, or start a new, shorter conversation."
    return replace(frame, finish="error", notice=notice, message_id=message_id)
