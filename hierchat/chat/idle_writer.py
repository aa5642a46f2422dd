"""Writes replies in spare time: several conversations of one user at once, all of it kept in the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field

from hierchat.chat.prompts import REPLY, Script
from hierchat.config import GenerationSettings
from hierchat.engine.batching import GIVE_WAY_MS
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.generation import loop_at_end
from hierchat.reasoning import split_reasoning
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import GeneratedText, Store

STREAMS = 8
"""Conversations at once, where all of their rows are computed within GIVE_WAY_MS."""
CONTEXT = 512
"""Tokens behind which a step of theirs is expected."""
MOST_TOKENS = 256
"""Of a reply."""
KEEP_SECONDS = 5.0
"""So much of half replies is lost where the process is killed."""


@dataclass(eq=False, slots=True)
class _Talk:
    """A conversation that is being held. `reply`: what there is of the one that is being written."""

    script: Script
    said: list[PromptMessage] = field(default_factory=list)
    turn: int = 0
    last: str = ""
    reply: list[int] = field(default_factory=list)
    steps: Generator[Step, None, None] | None = None


class Writer:
    """One stretch of writing for a user. Once `stop` is set no forward begins."""

    def __init__(
        self,
        store: Store,
        served: ServedModel,
        user_id: int,
        settings: GenerationSettings,
        stop: threading.Event,
    ) -> None:
        """`settings`: the model's own; temperature and seed are each conversation's."""
        self._store = store
        self._served = served
        self._user = user_id
        self._settings = settings
        self._stop = stop
        self._deletions = store.users.deletions(user_id)
        self._talks: list[_Talk] = []
        self._kept = time.monotonic()
        self.streams = streams(served)
        self.tokens = 0
        """Written since it began."""
        self.replies = 0
        """Finished since it began."""

    @property
    def stopped(self) -> bool:
        """Whether somebody wants the model, or something of the user's was deleted."""
        return self._stop.is_set()

    def write(self, scripts: Iterable[Script], goes_on: Callable[[], bool]) -> None:
        """These conversations, from where they were left, until all are held, `stop` is set or `goes_on`, which is
        asked after each step, says no. `keep` is to be called behind it, when the model is given back."""
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
        """Keep the replies that are half there; the next writer goes on with them."""
        for talk in self._talks:
            if talk.reply:
                self._keep(talk, done=False)
        self._kept = time.monotonic()

    def _next(self, waiting: Iterator[Script]) -> _Talk | None:
        """The next conversation that has something left to ask, and whose prompt fits."""
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
        """Begin with the next reply, or go on with what there is of it; whether there is one."""
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
        """One step of each."""
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
    """How many conversations are held at once: as many as one forward computes before whoever asks has waited too
    long. The slots of the latest chat stay as they are, where there are others."""
    engine = served.local
    if not engine.runner.shares_forward:
        return 1
    return max(min(STREAMS, engine.places - 1, engine.latency.within(GIVE_WAY_MS, CONTEXT)), 1)
