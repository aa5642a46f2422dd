"""The chat: takes a message, yields the reply's frames, and writes all of it down as it grows."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from hierchat.chat.ahead import run_ahead
from hierchat.chat.compare import compare_arms
from hierchat.chat.costs import keep_costs
from hierchat.chat.drafters import Memory, reply_drafter
from hierchat.chat.frames import CompareFrame, Figures, Frame, Span
from hierchat.chat.history import Histories
from hierchat.chat.host import Hosted, ModelHost
from hierchat.chat.learned import Learned
from hierchat.chat.plan import PlanView, plan_view
from hierchat.chat.prompt import MessageTooLong, Prompt, Said
from hierchat.chat.record import Record
from hierchat.chat.reply import Reply, plain_decode
from hierchat.chat.statistics import ReplyStatistics, stored_figures, text_spans
from hierchat.config import GenerationSettings
from hierchat.engine.engine import PromptTooLong
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.store import Store, StoreError

POLL_SECONDS = 0.1
CLOSE_SECONDS = 2.0
"""A reply that is still being written after so long keeps what was learned up to half a minute before."""
TROUBLE = (MessageTooLong, PromptTooLong, BrokenLogits, StoreError, MemoryError, RuntimeError)
"""What can go wrong in a reply and has a message for the page."""


class ChatService:
    """Conversations over one store and one host. One reply at a time: others wait for the engine."""

    def __init__(self, store: Store, host: ModelHost) -> None:
        self.store = store
        self.host = host
        self._histories = Histories(store)
        self._learned = Learned(store)
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
        """Store a user message below `parent_id` (None: first) and answer it. Raises NotFound at once."""
        question = self.store.add_message(user_id, conversation_id, parent_id, "user", text)
        yield from self._answer(user_id, conversation_id, question, settings, stop)

    def regenerate(
        self, user_id: int, user_message_id: int, settings: GenerationSettings, stop: threading.Event
    ) -> Generator[Frame, None, None]:
        """Another reply to a user message, with a new seed where it is sampled."""
        question = self.store.message(user_id, user_message_id)
        if settings.temperature > 0:
            settings = GenerationSettings(**{**settings.model_dump(), "seed": secrets.randbits(32)})
        yield from self._answer(user_id, question.conversation_id, question.id, settings, stop)

    def compare(
        self,
        user_id: int,
        conversation_id: int,
        parent_id: int | None,
        text: str,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> Generator[CompareFrame, None, None]:
        """Answer a message twice, vanilla and speculative in random order; the speculative reply is stored."""
        question = self.store.add_message(user_id, conversation_id, parent_id, "user", text)
        waiting = Frame("waiting")
        yield CompareFrame({"vanilla": waiting, "speculative": waiting}, None)
        vanilla: Reply | None = None
        speculative: Reply | None = None
        with self._engine(stop) as hosted:
            try:
                if hosted is None:
                    raise RuntimeError(self._absence(stop))
                speculative = self._reply(hosted, user_id, conversation_id, question, settings, stop)
                record = Record(self.store, speculative, user_id, conversation_id, question)
                vanilla = replace(
                    speculative,
                    statistics=ReplyStatistics(partial(plain_decode, hosted), settings.stop),
                    drafter=None,
                )
                run = partial(compare_arms, vanilla, speculative, record, stop)
                with closing(run_ahead(run, stop)) as frames:
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
        sources = [span.source for span in self.store.spans(user_id, message_id) for _ in range(span.length)]
        return text_spans(
            self.store.reply_tokens(user_id, message_id), sources, partial(plain_decode, hosted)
        )

    def figures(self, user_id: int, message_id: int) -> Figures | None:
        """Figures of a stored reply; None where there are none."""
        turn = self.store.turn(user_id, message_id)
        return stored_figures(turn.figures, turn.reply_tokens) if turn and turn.figures else None

    def plan(self) -> PlanView | None:
        """The hierarchy in force, at the length of the last context; None where the model has no draft models."""
        hosted = self.host.hosted
        return plan_view(hosted, len(hosted.engine.target.tokens)) if hosted else None

    def _answer(
        self,
        user_id: int,
        conversation_id: int,
        question: int,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> Generator[Frame, None, None]:
        yield Frame("waiting")
        reply: Reply | None = None
        last = Frame("waiting")
        with self._engine(stop) as hosted:
            try:
                if hosted is None:
                    raise RuntimeError(self._absence(stop))
                reply = self._reply(hosted, user_id, conversation_id, question, settings, stop)
                record = Record(self.store, reply, user_id, conversation_id, question)
                with closing(run_ahead(partial(record.frames, stop, measure=True), stop)) as frames:
                    for last in frames:
                        yield last
            except TROUBLE as error:
                yield _failed(error, reply, last.message_id)
            finally:
                self._keep(hosted)

    def _reply(
        self,
        hosted: Hosted,
        user_id: int,
        conversation_id: int,
        question: int,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> Reply:
        prompt = self._prompt(hosted, user_id, conversation_id, question, settings)
        held = self._histories.held(user_id, hosted.model_key, hosted.prompts.tokens, before=question)
        learned = self._learned.held(user_id, hosted.model_key)
        memory = Memory(held.sources, learned.acceptance, learned.successors, learned.levels)
        notice = None
        if prompt.dropped_turns:
            turns = (
                "oldest turn no longer fits the context window and was"
                if prompt.dropped_turns == 1
                else f"{prompt.dropped_turns} oldest turns no longer fit the context window and were"
            )
            notice = f"The {turns} left out."
        return Reply(
            hosted,
            prompt.ids,
            settings,
            _statistics(hosted, settings),
            reply_drafter(hosted, memory, settings, stop),
            notice,
        )

    def _prompt(
        self,
        hosted: Hosted,
        user_id: int,
        conversation_id: int,
        question: int,
        settings: GenerationSettings,
    ) -> Prompt:
        said = []
        for message in self.store.messages(user_id, conversation_id, question):
            tokens: list[int] = []
            if message.role == "assistant":
                turn = self.store.turn(user_id, message.id)
                # A reasoning template drops earlier thoughts: then the text counts.
                if turn and turn.begun.model_key == hosted.model_key and "</think>" not in message.text:
                    tokens = self.store.reply_tokens(user_id, message.id)
            if message.text or tokens:
                said.append(Said(message.role, message.text, tuple(tokens)))
        return hosted.prompts.build(said, settings.max_new_tokens, hosted.engine.end_ids)

    @contextmanager
    def _engine(self, stop: threading.Event) -> Iterator[Hosted | None]:
        """The loaded model, for one reply alone; None when there is none or the user gave up."""
        while not stop.is_set():
            phase = self.host.status.phase
            if phase in ("none", "failed"):
                break
            if phase == "ready" and self.host.engine_lock.acquire(timeout=POLL_SECONDS):
                try:
                    yield self.host.hosted
                finally:
                    self.host.engine_lock.release()
                return
            time.sleep(POLL_SECONDS)
        yield None

    def _keep(self, hosted: Hosted | None, *, now: bool = False) -> None:
        """Write down what was learned, if it is time."""
        if self._learned.save(now=now) and hosted and hosted.machine:
            keep_costs(hosted.engine, hosted.model_key, hosted.machine, self.store)
            if hosted.levels:
                hosted.levels.keep(self.store)

    def _absence(self, stop: threading.Event) -> str:
        if stop.is_set():
            return "Stopped before the model was ready."
        return self.host.status.message or "No model is loaded. Choose one above."


def _statistics(hosted: Hosted, settings: GenerationSettings) -> ReplyStatistics:
    statistics = ReplyStatistics(partial(plain_decode, hosted), settings.stop)
    statistics.set_baseline(hosted.vanilla_ms, "estimated")
    return statistics


def _failed(error: Exception, reply: Reply | None = None, message_id: int | None = None) -> Frame:
    """The last frame of a reply that could not go on: what it has so far, and why it ends there."""
    frame = reply.frame("done") if reply else Frame("done")
    if frame.finish not in (None, "error"):  # the other arm of a comparison had ended before
        return frame
    notice = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        notice = "Memory ran out. Close other programs, or start a new, shorter conversation."
    return replace(frame, finish="error", notice=notice, message_id=message_id)
