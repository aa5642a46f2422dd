"""Compare: answer one prompt in two ways, one after the other, with one model in one turn, with two in two."""

import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from hierchat import logs
from hierchat.chat.completions import ModelTurn, NoModel, NotBegun, failed
from hierchat.chat.frames import DESERVED_TOKENS, Arm, CompareFrame, Frame, Verdict
from hierchat.chat.reply_stream import ReplyRecorder, ReplyStream
from hierchat.chat.wording import pace
from hierchat.engine.generation import common_prefix
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.language import _, later
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel

WITHOUT, WITH = later("Without drafts"), later("With drafts")
ARMS: tuple[Arm, Arm] = ("first", "second")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Choice of how one side of a comparison answers; an empty name is the loaded model."""

    model: str = ""
    drafts: bool = True

    @property
    def name(self) -> str:
        drafts = "" if self.drafts and self.model else _(WITH if self.drafts else WITHOUT)
        return ", ".join(filter(None, (self.model, drafts)))


Pair = Mapping[Arm, Configuration]
USUAL: Pair = {
    "first": Configuration(drafts=False),
    "second": Configuration(),
}
"""Without drafts, against with them."""


def names(pair: Pair) -> dict[Arm, str]:
    """Return the names of both sides, numbered if they are equal."""
    first, second = pair["first"].name, pair["second"].name
    if first == second:
        return {"first": f"{first} (1)", "second": f"{second} (2)"}
    return {"first": first, "second": second}


@dataclass(eq=False)
class Comparing:
    """Runs a comparison. `begin` prepares a side; `keep` gets what was learned. Only the second side is recorded."""

    _slot: ModelSlot
    _pair: Pair
    _begin: Callable[[ServedModel, Arm], ReplyRecorder]
    _keep: Callable[[ServedModel], None]

    def __post_init__(self) -> None:
        self._names = names(self._pair)
        self._frames: dict[Arm, Frame] = {arm: Frame("waiting", name=self._names[arm]) for arm in ARMS}
        self._replies: dict[Arm, ReplyStream] = {}

    def frames(self, stop: threading.Event) -> Generator[CompareFrame, None, None]:
        """Yield frames until both sides have ended or one cannot be answered; then load the model of before again."""
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
            for arm in arms:
                self._set(arm, Frame("waiting", notice=f"Loading {name} for this side…"))
            yield self._frame(None)
            stop.wait(POLL_SECONDS)

    def _turn(self, name: str, arms: list[Arm], stop: threading.Event) -> Iterator[CompareFrame]:
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
            drafted = isinstance(served.engine, DraftedEngine)
            if not (served.is_local or drafted or all(self._pair[arm].drafts for arm in arms)):
                said = _(
                    "The server of {name} drafts by itself or not at all, so there is nothing to compare with. Two "
                    "models can be compared: under “Change”, choose drafts for both sides."
                )
                raise NotBegun(said.format(name=served.name))
            if drafted and self._pair["first"].drafts:
                arms = sorted(arms)  # else the server would draft the first reply from the second
            records = {arm: self._begin(served, arm) for arm in arms}
            self._replies |= {arm: record.reply for arm, record in records.items()}
            try:
                yield from self._run(served, records, stop)
            except Exception as error:
                notice = logs.error_message(error)
                for arm, record in records.items():
                    self._set(arm, failed(notice, record.reply))
                yield self._frame(None)
            finally:
                self._keep(served)

    def _run(
        self, served: ServedModel, records: dict[Arm, ReplyRecorder], stop: threading.Event
    ) -> Generator[CompareFrame, None, None]:
        engine = served.local if served.is_local else None
        drafting = served.levels.sequences if served.levels else ()
        replies = {arm: record.reply for arm, record in records.items()}
        prompt, user = next((reply.prompt_ids, reply.options.user_id) for reply in replies.values())
        shared = engine.pool.shared(prompt, user) if engine else 0
        read = [common_prefix(sequence.tokens, prompt) for sequence in drafting]
        for arm, record in records.items():
            if stop.is_set():
                break
            # Neither side profits from the other's reading.
            if engine:
                engine.pool.forget(prompt, shared)
            for sequence, kept in zip(drafting, read, strict=True):
                sequence.rollback(min(kept, len(sequence.tokens)))
            written = record.frames if arm == "second" else record.frames_alone
            with closing(written(measure=record.reply.drafter is not None, anew=True)) as running:
                for frame in running:
                    self._set(arm, frame)
                    yield self._frame(arm)
            for one in replies.values() if engine else ():
                plain = one.statistics
                if one.drafter is None and plain.tokens and plain.finish != "stopped":
                    # A whole plain reply is the better baseline than a few plain forwards.
                    for reply in replies.values():
                        reply.statistics.vanilla_ms = plain.decode_ms / len(plain.tokens)
        for arm, reply in replies.items():
            self._set(arm, replace(self._frames[arm], figures=reply.statistics.figures()))
        if self._replies.keys() == set(ARMS):
            first, second = (self._replies[arm].model for arm in ARMS)
            exact = first.engine.exact if first is second else None
            found = replace(verdict(self._replies, self._names), exact=exact)
            yield CompareFrame(dict(self._frames), None, found)

    def _set(self, arm: Arm, frame: Frame) -> None:
        self._frames[arm] = replace(frame, name=self._names[arm])

    def _frame(self, running: Arm | None) -> CompareFrame:
        return CompareFrame(dict(self._frames), running)


def verdict(replies: Mapping[Arm, ReplyStream], names: Mapping[Arm, str]) -> Verdict:
    first, second = replies["first"], replies["second"]
    left, right = first.statistics, second.statistics
    known = first.model is second.model and left.knows_tokens and right.knows_tokens
    same = common_prefix(left.tokens, right.tokens) if known else 0
    total = max(len(left.tokens), len(right.tokens))
    if "stopped" in (left.finish, right.finish) or not (left.tokens and right.tokens):
        compared = min(len(left.tokens), len(right.tokens))
        return Verdict(same == compared, None, _("Stopped."))
    speeds = [statistics.figures().tokens_per_second for statistics in (left, right)]
    drafted = all(
        one.model.is_local or isinstance(one.model.engine, DraftedEngine) for one in (first, second)
    )
    # Of a server that drafts as it likes, two speeds tell nothing.
    speedup = speeds[1] / speeds[0] if drafted and speeds[0] and speeds[1] else None
    tempo = _pace(speedup, names["second"])
    if tempo and min(len(left.tokens), len(right.tokens)) < DESERVED_TOKENS:
        tempo = " " + _("The replies were too short to measure.")
    identical = same == total if known else left.text == right.text
    word = common_prefix(left.text.split(), right.text.split()) + 1
    if identical:
        sentence = _("Word for word the same.{pace}").format(pace=tempo)
    elif reason := _reason(first, second):
        said = _("Other words from word {word:,} on, as expected: {reason}.{pace}")
        sentence = said.format(word=word, reason=reason, pace=tempo)
    else:
        sentence = _("The words differ from word {word:,} on.{pace}").format(word=word, pace=tempo)
    return Verdict(identical, speedup, sentence)


def _reason(first: ReplyStream, second: ReplyStream) -> str:
    """Say why two replies may differ in words; empty if they may not."""
    if first.model.model_key != second.model.model_key:
        return _("the models differ")
    if first.options.settings.temperature and isinstance(first.model.engine, DraftedEngine):
        return _("the server draws anew where a draft is refused, each word as likely as without drafts")
    return ""


def _pace(speedup: float | None, name: str) -> str:
    """Say how fast the second side, of this name, was against the first."""
    if speedup is None:
        return ""
    told = pace(speedup)
    return _(" “{name}” is {pace}.").format(name=name, pace=told) if told else _(" Both are as fast.")
