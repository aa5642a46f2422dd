"""The result of a comparison: what was asked, how, what both sides wrote, when, and what that shows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hierchat.chat.frames import DESERVED_TOKENS, Arm, Figures, Verdict
from hierchat.chat.idle_generation import OTHERS
from hierchat.chat.reply import ReplyStream
from hierchat.chat.settings import pace, percent
from hierchat.engine.engine import Compares, LearnsElsewhere
from hierchat.engine.generation import common_prefix
from hierchat.language import _

ARMS: tuple[Arm, Arm] = ("first", "second")
_FIGURES = (
    "tokens", "seconds", "first_token_seconds", "tokens_per_second", "tokens_per_forward", "acceptance_rate",
    "acceptance", "draft_ms", "shares", "finish", "speedup", "baseline", "baseline_tokens_per_second",
)  # fmt: skip
Moment = tuple[int, int, int]
"""Milliseconds since this side began, tokens and characters that it had by then."""
MOST_MOMENTS = 600
"""Of one side, in what is stored: a long reply is replayed in coarser steps."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side, as it was run."""

    name: str
    model: str
    revision: str
    """Names the model's weights and their form."""
    backend: str
    configuration: Mapping[str, Any]
    settings: Mapping[str, Any]
    text: str
    figures: Figures
    moments: Sequence[Moment] = ()

    def record(self) -> dict[str, Any]:
        """For JSON."""
        figures = {name: getattr(self.figures, name) for name in _FIGURES}
        figures |= {name: dict(figures[name]) for name in ("acceptance", "shares")}
        kept = {name: getattr(self, name) for name in ("name", "model", "revision", "backend", "text")}
        return {
            **kept,
            "configuration": dict(self.configuration),
            "settings": dict(self.settings),
            "figures": figures,
            "moments": differences(self.moments),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """What `record` made."""
        figures, moments = Figures(**record["figures"]), summed(record["moments"])
        return cls(**{**record, "figures": figures, "moments": moments})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result; `id`: in the store, 0 where it is not there."""

    question: str
    sides: Mapping[Arm, Side]
    verdict: Verdict
    machine: str
    hierchat: str
    alone: bool
    """Whether the question was the first of its chat: then nothing else was in the prompt."""
    at: float = field(default_factory=time.time)
    id: int = 0

    @property
    def deserved_speedup(self) -> float | None:
        """Of the second side over the first, where both are long enough for it to be told."""
        long = all(side.figures.tokens >= DESERVED_TOKENS for side in self.sides.values())
        return self.verdict.speedup if long else None

    def record(self) -> dict[str, Any]:
        """All but question, time and id, for JSON."""
        verdict = {name: getattr(self.verdict, name) for name in Verdict.__slots__}
        return {
            "sides": {arm: self.sides[arm].record() for arm in ARMS},
            "verdict": verdict,
            "machine": self.machine,
            "hierchat": self.hierchat,
            "alone": self.alone,
        }

    def to_json(self) -> str:
        """The same, as the store keeps it."""
        return json.dumps(self.record(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, id: int, question: str, at: float, text: str) -> Self:
        """What `to_json` made."""
        record = json.loads(text)
        sides = {arm: Side.of(record["sides"][arm]) for arm in ARMS}
        return cls(
            **{**record, "sides": sides, "verdict": Verdict(**record["verdict"])},
            question=question,
            at=at,
            id=id,
        )


def differences(moments: Sequence[Moment]) -> list[list[int]]:
    """Each moment as what changed since the one before, at most MOST_MOMENTS of them."""
    step = -(-len(moments) // MOST_MOMENTS) or 1
    kept = [*moments[:-1:step], *moments[-1:]]
    before = [(0, 0, 0), *kept]
    return [
        [now - then for now, then in zip(at, last, strict=True)]
        for at, last in zip(kept, before, strict=False)
    ]


def summed(changes: Sequence[Sequence[int]]) -> list[Moment]:
    """What `differences` made."""
    moments: list[Moment] = []
    ms = tokens = characters = 0
    for more_ms, more_tokens, more_characters in changes:
        ms, tokens, characters = ms + more_ms, tokens + more_tokens, characters + more_characters
        moments.append((ms, tokens, characters))
    return moments


# What a comparison found, in plain words and in precise ones.


def verdict(
    replies: Mapping[Arm, ReplyStream], names: Mapping[Arm, str], engine: Compares | None, others: float = 0.0
) -> Verdict:
    """Compare two replies to one prompt. `engine`: the one of both, to ask how near the two choices were; None where
    it cannot tell, or each has its own. `others`: share of the processor that other programs used meanwhile."""
    first, second = replies["first"], replies["second"]
    left, right = first.statistics, second.statistics
    known = first.model is second.model and left.knows_tokens and right.knows_tokens
    same = common_prefix(left.tokens, right.tokens) if known else 0
    total = max(len(left.tokens), len(right.tokens))
    if "stopped" in (left.finish, right.finish) or not (left.tokens and right.tokens):
        compared = min(len(left.tokens), len(right.tokens))
        so_far = known and same and same == compared
        sentence = (
            _("Stopped. Word for word the same so far, {same:,} tokens.").format(same=same)
            if so_far
            else _("Stopped.")
        )
        return Verdict(same == compared, same, None, None, sentence)
    speeds = [statistics.figures().tokens_per_second for statistics in (left, right)]
    drafted = all(
        one.model.is_local or isinstance(one.model.engine, LearnsElsewhere) for one in (first, second)
    )
    # Of a server that drafts as it likes, two speeds tell nothing.
    speedup = speeds[1] / speeds[0] if drafted and speeds[0] and speeds[1] else None
    deserved = min(len(left.tokens), len(right.tokens)) >= DESERVED_TOKENS
    tempo = _pace(speedup, names["second"], others) if deserved else ""
    if (known and same == total) or (not known and left.text == right.text):
        precise = (
            _("Identical, {same:,} of {total:,} tokens.").format(same=same, total=total)
            if known
            else _("Both texts have the same characters.")
        )
        return Verdict(
            True, same, None, speedup, _("Word for word the same.{pace}").format(pace=tempo), precise=precise
        )
    word = first_difference(left.text, right.text) + 1
    reason = _reason(first, second)
    if reason:
        sentence = _("Other words from word {word:,} on, as expected: {reason}.{pace}").format(
            word=word, reason=reason, pace=tempo
        )
        precise = _("First difference at token {token:,}.").format(token=same + 1) if known else ""
        return Verdict(False, same, None, speedup, sentence, precise=precise)
    gap = None
    if engine and known and same < min(len(left.tokens), len(right.tokens)):
        context = [*first.prompt_ids, *left.tokens[:same]]
        gap = engine.logit_gap(context, left.tokens[same], right.tokens[same])
    noted = "" if gap is None else _(" (logit gap {gap:.4f})").format(gap=gap)
    precise = (
        _("First difference at token {token:,}{noted}.").format(token=same + 1, noted=noted) if known else ""
    )
    return Verdict(
        False,
        same,
        gap,
        speedup,
        _("The words differ from word {word:,} on.{pace}").format(word=word, pace=tempo),
        precise=precise,
    )


def first_difference(first: str, second: str) -> int:
    """The number of words that two texts begin with in common."""
    return common_prefix(first.split(), second.split())


def _reason(first: ReplyStream, second: ReplyStream) -> str:
    """Why two replies may have other words; empty where they may not."""
    if first.model.model_key != second.model.model_key:
        return _("the models differ")
    if first.settings.temperature != second.settings.temperature:
        return _("the temperatures differ")
    if first.settings.temperature and first.settings.seed != second.settings.seed:
        return _("the seeds differ")
    if first.settings.temperature and isinstance(first.model.engine, LearnsElsewhere):
        return _("the server draws anew where a draft is refused, each word as likely as without drafts")
    return ""


def _pace(speedup: float | None, name: str, others: float) -> str:
    """The second side, of this name, against the first."""
    if speedup is None:
        return ""
    told = pace(speedup)
    said = _(" “{name}” is {pace}.").format(name=name, pace=told) if told else _(" Both are as fast.")
    if others <= OTHERS:
        return said
    doubt = _(
        " Other programs used {share} of the processor meanwhile, and each side ran once: compare again before you "
        "rely on the speed."
    )
    return said + doubt.format(share=percent(others))
