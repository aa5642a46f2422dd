"""One prompt answered in two ways, one after the other: with one model in one turn, with two in two."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

from pydantic import ValidationError

import hierchat
from hierchat import logs
from hierchat.chat.comparison import ARMS, Comparison, Moment, Side, verdict
from hierchat.chat.completions import ModelTurn, NoModel, failed
from hierchat.chat.frames import Arm, CompareFrame, Frame
from hierchat.chat.idle_generation import OtherPrograms
from hierchat.chat.in_progress import in_reply_thread
from hierchat.chat.record import Record
from hierchat.chat.reply import ReplyStream
from hierchat.config import GenerationSettings
from hierchat.engine.engine import Compares, LearnsElsewhere
from hierchat.engine.generation import common_prefix
from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.language import _, later
from hierchat.runtime.costs import machine_words
from hierchat.runtime.drafters import ALL, Databases, Drafting
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import StoreError

# One side of a comparison: which model, what drafts for it, and how it is sampled.


FROM = {
    "none": later("nothing"),
    "chat": later("this chat"),
    "replies": later("this chat and your earlier ones"),
    "texts": later("this chat, your earlier ones and texts"),
}
"""What `Databases` are called on the page."""
WITHOUT, WITH = later("Without drafts"), later("With drafts")


class WrongConfiguration(ValueError):
    """Values that make no configuration. The message is for the page."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One side. None and an empty name: as it is in force."""

    model: str = ""
    drafting: Drafting = field(default=ALL)
    temperature: float | None = None
    seed: int | None = None

    def settings(self, now: GenerationSettings) -> GenerationSettings:
        """Those in force with what this side changes. Raises WrongConfiguration."""
        changed = {"temperature": self.temperature, "seed": self.seed}
        given = {name: value for name, value in changed.items() if value is not None}
        try:
            return GenerationSettings(**{**now.model_dump(), **given})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            limit = _("between 0 and 10") if name == "temperature" else _("a whole number, at least 0")
            raise WrongConfiguration(
                _("The {name} of a comparison must be {limit}.").format(name=name, limit=limit)
            ) from error

    @property
    def name(self) -> str:
        """For the eye: what is special about it."""
        drafting = self.drafting
        parts = [self.model] if self.model else []
        if drafting.nothing:
            parts.append(_(WITHOUT))
        elif drafting.databases == "none":
            parts.append(_("Drafts from draft models alone"))
        elif drafting != ALL:
            models = "" if drafting.draft_models else _(", no draft models")
            parts.append(
                _("Drafts from {texts}{models}").format(texts=_(FROM[drafting.databases]), models=models)
            )
        if self.temperature is not None:
            parts.append(_("temperature {temperature:g}").format(temperature=self.temperature))
        if self.seed is not None:
            parts.append(_("seed {seed}").format(seed=self.seed))
        return ", ".join(parts) or _(WITH)

    def record(self) -> dict[str, Any]:
        """For a file: `configuration` makes the same of it."""
        return {
            "model": self.model,
            "databases": self.drafting.databases,
            "draft_models": self.drafting.draft_models,
            "temperature": self.temperature,
            "seed": self.seed,
        }


Pair = Mapping[Arm, Configuration]
USUAL: Pair = {
    "first": Configuration(drafting=Drafting("none", draft_models=False)),
    "second": Configuration(),
}
"""Without drafts, against with them."""


def configuration(given: Mapping[str, Any]) -> Configuration:
    """From what a form or a file says; what is missing is as in force. Raises WrongConfiguration."""
    databases: Databases = given.get("databases", "texts")
    if not isinstance(databases, str) or databases not in get_args(Databases):
        raise WrongConfiguration(_("A comparison drafts from nothing, this chat, earlier chats or texts."))
    temperature, seed = given.get("temperature"), given.get("seed")
    try:
        made = Configuration(
            str(given.get("model") or ""),
            Drafting(databases, bool(given.get("draft_models", True))),
            None if temperature in (None, "") else float(str(temperature)),
            None if seed in (None, "") else int(str(seed)),
        )
    except ValueError as error:
        raise WrongConfiguration(
            _("Temperature and seed of a comparison must be numbers, the seed a whole one.")
        ) from error
    made.settings(GenerationSettings())
    return made


def names(pair: Pair) -> dict[Arm, str]:
    """What both are called, told apart."""
    first, second = pair["first"].name, pair["second"].name
    if first == second:
        return {"first": f"{first} (1)", "second": f"{second} (2)"}
    return {"first": first, "second": second}


class CannotCompare(ValueError):
    """The engine does not draft as a side asks. The message is for the page."""


class Comparing:
    """A comparison in progress. `begin` makes a side's reply ready, in its model's turn; `keep` is told of what was
    learned. Of the records, only the second side's is written."""

    def __init__(
        self,
        slot: ModelSlot,
        pair: Pair,
        question: str,
        begin: Callable[[ServedModel, Arm], Record],
        keep: Callable[[ServedModel], None],
        *,
        alone: bool,
    ) -> None:
        self._slot = slot
        self._pair = pair
        self._question = question
        self._begin = begin
        self._keep = keep
        self._alone = alone
        self._names = names(pair)
        self._frames: dict[Arm, Frame] = {arm: Frame("waiting", name=self._names[arm]) for arm in ARMS}
        self._replies: dict[Arm, ReplyStream] = {}
        self._moments: dict[Arm, list[Moment]] = {arm: [] for arm in ARMS}
        self._others = 0.0

    def frames(self, stop: threading.Event) -> Generator[CompareFrame, None, None]:
        """Until both have ended, or one cannot be answered; the model that answered before does so again."""
        home = self._slot.status.name
        models = {arm: self._pair[arm].model or home for arm in ARMS}
        order: list[Arm] = list(ARMS)
        one_model = models["first"] == models["second"]
        # By chance; of two models, the one that is loaded.
        if secrets.randbelow(2) if one_model else models["second"] == home:
            order.reverse()
        turns = [order] if one_model else [[arm] for arm in order]
        try:
            for arms in turns:
                if stop.is_set():
                    return
                yield from self._bring(models[arms[0]], arms, stop)
                yield from self._turn(models[arms[0]], arms, stop)
                if any(self._frames[arm].finish == "error" for arm in arms):
                    return
        finally:
            if home and self._slot.status.name != home:
                self._slot.start(home)

    def _bring(self, name: str, arms: list[Arm], stop: threading.Event) -> Iterator[CompareFrame]:
        """Until that model is there. Raises NoModel; where the other side is written already, its frame says so."""
        slot = self._slot
        if slot.status.name == name:  # it is loaded, or its turn waits for it
            return
        slot.start(name)
        while not stop.is_set():
            now = slot.status
            if now.phase == "ready" and now.name == name:
                return
            if now.phase in ("ready", "failed"):
                trouble = now.message or f"{name} could not be loaded."
                if not self._replies:
                    raise NoModel(trouble)
                self._set(arms[0], Frame("done", finish="error", notice=trouble))
                yield self._frame(None)
                return
            share = f" {now.done / now.total:.0%}" if now.total else ""
            for arm in arms:
                self._set(arm, Frame("waiting", notice=f"Loading {name} for this side…{share}"))
            yield self._frame(None)
            stop.wait(POLL_SECONDS)

    def _turn(self, name: str, arms: list[Arm], stop: threading.Event) -> Iterator[CompareFrame]:
        """These sides, in one turn of their model."""
        if self._frames[arms[0]].finish == "error":
            return
        with ModelTurn(self._slot, stop, alone=True) as turn:
            for ahead in turn.waiting():
                for arm in arms:
                    self._set(arm, replace(self._frames[arm], ahead=ahead))
                yield self._frame(None)
            if (served := turn.model) is None:
                return
            if served.name != name and self._replies:
                raise NoModel(f"{name} was replaced before it could answer. Compare once more.")
            for arm in arms:
                _require_drafting(served, self._pair[arm].drafting)
            if isinstance(served.engine, LearnsElsewhere) and not self._pair["first"].drafting.nothing:
                arms = sorted(arms)  # what the second one leaves behind must not draft its rival
            records = {arm: self._begin(served, arm) for arm in arms}
            self._replies |= {arm: record.reply for arm, record in records.items()}
            try:
                with closing(in_reply_thread(partial(self._run, served, records, stop), stop)) as running:
                    yield from running
            except Exception as error:
                notice = logs.error_message(error)
                for arm, record in records.items():
                    self._set(arm, failed(notice, record))
                yield self._frame(None)
            finally:
                self._keep(served)

    def _run(
        self, served: ServedModel, records: dict[Arm, Record], stop: threading.Event
    ) -> Generator[CompareFrame, None, None]:
        engine = served.engine if isinstance(served.engine, Compares) else None
        drafting = served.levels.sequences if served.levels else ()
        replies = {arm: record.reply for arm, record in records.items()}
        prompt, user = next((reply.prompt_ids, reply.user) for reply in replies.values())
        shared = engine.shared(prompt, user) if engine else 0
        read = [common_prefix(sequence.tokens, prompt) for sequence in drafting]
        for arm, record in records.items():
            if stop.is_set():
                break
            # Neither side profits from the other's reading.
            if engine:
                engine.forget(prompt, shared)
            record.reply.anew = True
            for sequence, kept in zip(drafting, read, strict=True):
                sequence.rollback(min(kept, len(sequence.tokens)))
            written = record.frames if arm == "second" else record.frames_alone
            began, others = time.monotonic(), OtherPrograms()
            with closing(written(stop, measure=record.reply.drafter is not None)) as running:
                for frame in running:
                    self._set(arm, frame)
                    moment = (round((time.monotonic() - began) * 1e3), frame.figures.tokens, len(frame.text))
                    self._moments[arm].append(moment)
                    yield self._frame(arm)
            self._others = max(self._others, others.share())
            if engine:
                _set_baselines(list(replies.values()))
        for arm, reply in replies.items():
            self._set(arm, replace(self._frames[arm], figures=reply.statistics.figures()))
        if self._replies.keys() == set(ARMS):
            yield self._judged()

    def _judged(self) -> CompareFrame:
        first, second = (self._replies[arm] for arm in ARMS)
        engine = first.model.engine if first.model is second.model else None
        compares = engine if isinstance(engine, Compares) else None
        found = verdict(self._replies, self._names, compares, self._others)
        found = replace(found, exact=engine.exact if engine else None, others=self._others)
        ended = all(
            reply.statistics.finish not in (None, "stopped", "error") for reply in self._replies.values()
        )
        result = None
        if ended and first.statistics.tokens and second.statistics.tokens:
            sides = {arm: self._side(arm) for arm in ARMS}
            result = Comparison(
                self._question, sides, found, machine_words(), hierchat.__version__, self._alone
            )
        return CompareFrame(dict(self._frames), None, found, result)

    def _side(self, arm: Arm) -> Side:
        reply = self._replies[arm]
        return Side(
            self._names[arm],
            reply.model.name,
            reply.model.model_key,
            reply.model.engine.backend,
            self._pair[arm].record(),
            reply.settings.model_dump(mode="json"),
            reply.statistics.text,
            reply.statistics.figures(),
            self._moments[arm],
        )

    def _set(self, arm: Arm, frame: Frame) -> None:
        self._frames[arm] = replace(frame, name=self._names[arm])

    def _frame(self, running: Arm | None) -> CompareFrame:
        return CompareFrame(dict(self._frames), running)


def _require_drafting(served: ServedModel, drafting: Drafting) -> None:
    """Raises CannotCompare where the engine does not draft so."""
    if served.is_local or drafting.databases == "texts":
        return
    if not isinstance(served.engine, LearnsElsewhere):
        raise CannotCompare(
            _(
                "The server of {name} drafts by itself or not at all, so there is nothing to compare with. Two "
                "temperatures, seeds or models can be compared: under “Change”, have the drafts of both sides come "
                "from “this chat, your earlier ones and texts”."
            ).format(name=served.name)
        )
    if drafting.databases != "none":
        raise CannotCompare(
            _(
                "The drafter of {name} drafts from all that it has, or from nothing. Choose “nothing” or “this chat, "
                "your earlier ones and texts” for each side."
            ).format(name=served.name)
        )


def _set_baselines(replies: list[ReplyStream]) -> None:
    """A whole plain reply is the better baseline than a few plain forwards."""
    for one in replies:
        plain = one.statistics
        if one.drafter is None and plain.tokens and plain.finish != "stopped":
            for reply in replies:
                reply.statistics.set_baseline(plain.decode_ms / len(plain.tokens), "measured")


def with_id(frame: CompareFrame, keep: Callable[[str, float, str], int]) -> CompareFrame:
    """The last frame, its result kept. Where the store cannot be written, it is only shown."""
    result = frame.result
    if result is None:
        return frame
    with suppress(StoreError):
        result = replace(result, id=keep(result.question, result.at, result.to_json()))
    return replace(frame, result=result)
