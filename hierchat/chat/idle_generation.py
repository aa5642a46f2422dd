"""Generate texts while idle: when nobody needs the machine, the model writes for the users who allow it."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hierchat import logs
from hierchat.chat.prompts import REPLY, Script, shipped_scripts, waiting_scripts
from hierchat.chat.spare_time import Machine, SpareTimeThread
from hierchat.config import GenerationSettings
from hierchat.engine.batching import GIVE_WAY_MS
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.generation import loop_at_end
from hierchat.reasoning import split_reasoning
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import GeneratedText, Store

STREAMS = 8
"""Conversations at once, where all of their rows are computed within GIVE_WAY_MS."""
CONTEXT = 512
"""Tokens behind which a step of theirs is expected."""
MOST_TOKENS = 256
"""Tokens after which a generated reply is cut."""
KEEP_SECONDS = 5.0
"""So much of half replies is lost where the process is killed."""
BEGIN_SECONDS = 600.0
"""So long nobody must have asked for a reply before it begins; assets/templates/idle.html says it."""
MOST_WRITTEN = 500_000
"""Tokens that are generated at most for a user and a model."""


@dataclass(eq=False, slots=True)
class _Talk:
    """Conversation of idle generation in progress. `reply`: tokens so far of the reply being written."""

    script: Script
    said: list[PromptMessage] = field(default_factory=list)
    turn: int = 0
    last: str = ""
    reply: list[int] = field(default_factory=list)
    steps: Generator[Step, None, None] | None = None


@dataclass(eq=False)
class Writer:
    """Writes conversations for one user for one stretch of idle time. Once `stop` is set no forward begins."""

    _store: Store
    _served: ServedModel
    _user: int
    _settings: GenerationSettings
    """The model's own; temperature and seed are each conversation's."""
    _stop: threading.Event

    def __post_init__(self) -> None:
        self._deletions = self._store.users.deletions(self._user)
        self._talks: list[_Talk] = []
        self._kept = time.monotonic()
        self.streams = streams(self._served)
        self.tokens = 0
        """Written since it began."""
        self.replies = 0
        """Finished since it began."""

    @property
    def stopped(self) -> bool:
        """Return whether somebody wants the model, or something of the user's was deleted."""
        return self._stop.is_set()

    def write(self, scripts: Iterable[Script], goes_on: Callable[[], bool]) -> None:
        """Write these conversations until the end, `stop`, or `goes_on` returns False. Call `keep` afterwards."""
        waiting = iter(scripts)
        try:
            while not self._stop.is_set():
                while len(self._talks) < self.streams and (talk := self._next(waiting)):
                    self._talks.append(talk)
                if not self._talks:
                    return
                self._step()
                if time.monotonic() - self._kept >= KEEP_SECONDS:
                    self.keep()
                if not goes_on():
                    return
        finally:
            for talk in self._talks:
                if talk.steps:
                    talk.steps.close()

    def keep(self) -> None:
        """Store the replies that are half written; the next writer goes on with them."""
        for talk in self._talks:
            if talk.reply:
                self._keep(talk, done=False)
        self._kept = time.monotonic()

    def _next(self, waiting: Iterator[Script]) -> _Talk | None:
        for script in waiting:
            talk = _Talk(script)
            half: list[int] = []
            for text in self._store.generated.texts(self._user, self._served.model_key, script.key):
                if text.done:
                    self._question(talk)
                    self._answered(talk, text.ids)
                else:
                    half = list(text.ids)
            if self._ask(talk, half):
                return talk
        return None

    def _question(self, talk: _Talk) -> None:
        text = talk.script.turns[talk.turn]
        if talk.turn and REPLY in text:
            text, talk.said = text.replace(REPLY, talk.last), []
        talk.said.append(PromptMessage("user", text))

    def _answered(self, talk: _Talk, ids: Iterable[int]) -> None:
        tokens = tuple(ids)
        thinking = self._served.prompts.thinking
        text = thinking.text(tokens, opened=thinking.always_opened)
        talk.last = split_reasoning(text).answer
        talk.said.append(PromptMessage("assistant", text, tokens))
        talk.turn, talk.reply = talk.turn + 1, []

    def _ask(self, talk: _Talk, half: list[int]) -> bool:
        if talk.turn >= len(talk.script.turns):
            return False
        self._question(talk)
        served = self._served
        try:
            prompt = served.prompts.build(talk.said, MOST_TOKENS, served.end_ids)
        except PromptError:
            return False
        settings = GenerationSettings(
            **{
                **self._settings.model_dump(),
                "temperature": talk.script.temperature,
                "seed": talk.script.seed,
                "max_new_tokens": MOST_TOKENS,
            }
        )
        talk.reply = half
        talk.steps = served.local.generate(
            GenerationRequest(
                [*prompt.ids, *half],
                settings,
                stop=self._stop,
                padded=False,
                begun=len(half),
                user=~self._user,  # its slots are nobody else's, the user's own chats' neither
                spare=True,
            )
        )
        return True

    def _step(self) -> None:
        for talk in list(self._talks):
            assert talk.steps
            step = next(talk.steps)
            talk.reply += step.tokens
            self.tokens += len(step.tokens)
            if self._stop.is_set():
                return
            repeated = loop_at_end(talk.reply) if step.tokens else 0
            if not step.finish and not repeated:
                continue
            talk.steps.close()
            del talk.reply[len(talk.reply) - repeated :]
            self._keep(talk, done=True)
            self.replies += 1
            self._answered(talk, talk.reply)
            if not self._ask(talk, []):
                self._talks.remove(talk)

    def _keep(self, talk: _Talk, *, done: bool) -> None:
        kept = self._store.generated.keep(
            self._user,
            self._served.model_key,
            talk.script.key,
            GeneratedText(talk.turn, tuple(talk.reply), done),
            talk.script.origin,
            deletions=self._deletions,
        )
        if not kept:  # something of the user's was deleted, perhaps what this was made from: begin anew
            self._stop.set()


def streams(served: ServedModel) -> int:
    """Return how many conversations to write at once; slots of the latest chat stay if there are others."""
    engine = served.local
    if not engine.runner.shares_forward:
        return 1
    return max(min(STREAMS, engine.places - 1, engine.latency.within(GIVE_WAY_MS, CONTEXT)), 1)


POLL_SECONDS = 5.0
TURN_SECONDS = 600.0
"""So long it writes for one of several users, then for the next one."""
INDEX_SECONDS = 30.0
"""What was written drafts after so long, or from the next reply on."""

PATIENCE_SECONDS = 0.1
"""Between two tries to end it."""

IdlePhase = Literal["off", "refused", "no model", "full", "not now", "waiting", "writing"]

_log = logging.getLogger("hierchat.chat")


@dataclass(frozen=True, slots=True)
class IdleState:
    """State of idle generation for one user. Tokens are counted in those of the loaded model."""

    phase: IdlePhase
    tokens: int = 0
    """That there are, what is being written with them."""
    written: int = 0
    """In phase "writing": since it began."""
    streams: int = 0
    """In phase "writing": replies at once."""
    reason: str = ""


class IdleGeneration:
    """Runs idle generation in a thread while some user allows it. A request gets the model after one step at most."""

    def __init__(self, store: Store, slot: ModelSlot, index: Callable[[int, ServedModel], object]) -> None:
        """Take the parts. `index`: indexes a user's new texts for drafting; called while no reply is being written."""
        self._store = store
        self._slot = slot
        self._index = index
        self._machine = Machine()
        self._touched = 0.0
        self._trouble = ""
        self._stop = threading.Event()
        self._user: int | None = None
        self._writer: Writer | None = None
        self._running = threading.Lock()
        self._thread = SpareTimeThread("learning", POLL_SECONDS, self._look, self._failed)
        self.wake = self._thread.wake

    def allow(self, user_id: int, *, on: bool) -> None:
        """Set whether texts are generated for a user; those that were stay."""
        self._store.users.choose(user_id, learns=on)
        if on:
            self.wake()
        else:
            self.end()

    def touched(self) -> None:
        """Note that somebody uses the page: idle generation gives way as to a request for a reply."""
        self._touched = time.monotonic()
        self._stop.set()

    def end(self) -> None:
        """End what is being written and keep it. It begins again after BEGIN_SECONDS without requests."""
        with self._ended():
            pass

    def delete(self, user_id: int) -> bool:
        """Delete all texts that were generated for a user; returns Connection.rewrite's answer."""
        with self._ended():
            return self._store.generated.delete(user_id)

    def state(self, user_id: int) -> IdleState:
        served, writer = self._slot.model, self._writer
        local = served is not None and served.is_local
        tokens = self._store.generated.size(user_id, served.model_key).tokens if served and local else 0
        if not self._store.users.chosen(user_id, "learns", False):
            return IdleState("off", tokens)
        if self._store.users.drafts_from(user_id) != "all":
            return IdleState("refused", tokens)
        if not local:
            return IdleState("no model")
        if writer is not None and self._user == user_id:
            return IdleState("writing", tokens, writer.tokens, writer.streams)
        if tokens >= MOST_WRITTEN:
            return IdleState("full", tokens)
        if self._trouble:
            return IdleState("not now", tokens, reason=self._trouble)
        return IdleState("waiting", tokens)

    def close(self) -> None:
        """Stop the thread; what it has written is kept."""
        self._thread.closed.set()
        self._stop.set()
        self._thread.wait()

    @contextmanager
    def _ended(self) -> Iterator[None]:
        self.touched()
        while not self._running.acquire(timeout=PATIENCE_SECONDS):
            self._stop.set()  # it may have begun meanwhile
        try:
            yield
        finally:
            self._running.release()

    def _failed(self, error: Exception) -> None:
        self._trouble = logs.error_message(error)  # replies are as fast as before
        _log.warning("Nothing more is written in spare time. %s", self._trouble)

    def _look(self) -> bool:
        """Write if nobody has used the machine for long enough; return whether any user allows it."""
        learners, served = self._store.users.with_idle_generation(), self._slot.model
        if not learners:
            return False
        if served is None or not served.is_local:
            return True
        self._trouble = self._machine.trouble()
        idle = min(self._slot.scheduler.idle_seconds, time.monotonic() - self._touched)
        due = [user for user in learners if self._room(user, served) > 0]
        if due and idle >= BEGIN_SECONDS and not self._trouble:
            shipped_scripts()  # takes seconds the first time: nobody is to wait for that
            with self._running:
                self._write(served, due)
        return True

    def _room(self, user: int, served: ServedModel) -> int:
        return MOST_WRITTEN - self._store.generated.size(user, served.model_key).tokens

    def _write(self, served: ServedModel, due: list[int]) -> None:
        touched, writer = self._touched, None
        try:
            with self._slot.scheduler.spare() as wanted:
                if wanted is None or self._slot.model is not served or self._touched != touched:
                    return
                self._stop = wanted
                while due and not wanted.is_set() and not self._thread.closed.is_set():
                    user = min(due, key=lambda one: self._store.generated.size(one, served.model_key).tokens)
                    settings = self._slot.settings(served.name)
                    writer = Writer(self._store, served, user, settings, wanted)
                    self._user, self._writer = user, writer
                    more = self._stretch(writer, served, user, TURN_SECONDS if len(due) > 1 else None)
                    if not wanted.is_set():
                        writer.keep()
                    if not more:
                        due.remove(user)
        finally:
            # The model is given back by now: whoever asked does not wait for the disk.
            self._user, self._writer = None, None
            if writer is not None:
                writer.keep()

    def _stretch(self, writer: Writer, served: ServedModel, user: int, seconds: float | None) -> bool:
        """Write for one user for at most `seconds`; return whether there may be more to write."""
        most = self._room(user, served)
        began = indexed = time.monotonic()

        def goes_on() -> bool:
            nonlocal indexed
            now = time.monotonic()
            if now - indexed >= INDEX_SECONDS:
                indexed = now
                self._index(user, served)
            self._trouble = self._machine.trouble()
            calm = not self._trouble
            return calm and writer.tokens < most and (seconds is None or now - began < seconds)

        writer.write(waiting_scripts(self._store, user, served.model_key), goes_on)
        if not writer.stopped:
            self._index(user, served)
        return seconds is not None and time.monotonic() - began >= seconds
