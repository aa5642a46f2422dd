"""Summarise the raw figures of a run into those that are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from statistics import median, quantiles
from typing import Any

from benchmarks.arms import HIERCHAT, NO_HISTORY, VANILLA, baseline_of

Row = dict[str, Any]
"""A question's raw figures: question (number), name, group, day, and arms: arm -> an Answer per turn, as a dict."""
Turn = dict[str, Any]


def summarise(rows: Sequence[Row], arm: str) -> dict[str, Any]:
    """Compute an arm's figures over the questions that it answered.

    Speeds and speed-ups are medians over questions, so that no long or disturbed reply decides. A question's speed is
    its tokens over its seconds of decoding. `speedup` is against vanilla, None without vanilla; `stack_speedup` against
    plain decoding of the same stack (arms.baseline_of). `quartiles`: lower quartile, median, upper quartile. `draft_ms`
    is per forward. `mismatches` are replies that differ from those of the stack's plain decoding to the same prompt. Of
    questions that were asked repeatedly, give merged_repeats.
    """
    answered = [row for row in rows if arm in row["arms"]]
    turns = _turns(answered, arm)
    forwards = sum(turn["forwards"] or 0 for turn in turns)
    drafting = [turn["draft_ms"] for turn in turns]
    sources: Counter[str] = Counter()
    for turn in turns:
        sources.update(turn["sources"])
    figures = {
        "arm": arm,
        "questions": len(answered),
        **_figures(answered, arm),
        "draft_ms": round(sum(drafting) / forwards, 3) if forwards and None not in drafting else None,
        "first_token_seconds": round(median(turn["first_seconds"] for turn in turns), 3) if turns else None,
        "stack_speedup": _middle(_speedups(answered, arm, baseline_of(arm)), 3),
        "mismatches": _mismatches(answered, arm, baseline_of(arm)),
        "peak_mb": max((turn.get("peak_mb") or 0 for turn in turns), default=0) or None,
        "quartiles": {
            "tokens_per_second": _quartiles(_rates(answered, arm)),
            "speedup": _quartiles(_speedups(answered, arm)),
        },
        "sources": {source: round(count / sources.total(), 4) for source, count in sources.most_common()},
        "plan_ms": _plan_ms(turns),
        "by_group": _by(answered, arm, lambda row: row["group"]),
    }
    if any(row["day"] is not None for row in answered):
        figures["by_day"] = _by(answered, arm, lambda row: str(row["day"]))
    if arm == HIERCHAT and (pairs := [row for row in answered if NO_HISTORY in row["arms"]]):
        figures["history"] = _history(pairs)
    return figures


def _history(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return what the history brings on the same words: all that drafts over the same without earlier chats. Of all
    questions, of each group, and of each third of the days. `speed`: the median over questions; `forwards`: how many
    times fewer forwards all of them took."""
    thirds = ("first third", "second third", "last third")
    days = sorted({row["day"] for row in rows if row["day"] is not None})
    third = {day: thirds[at * len(thirds) // len(days)] for at, day in enumerate(days)}
    found = {"all": list(rows)}
    for row in rows:
        found.setdefault(row["group"], []).append(row)
        if row["day"] is not None:
            found.setdefault(third[row["day"]], []).append(row)
    return {name: _gain(some) for name, some in found.items()}


def _gain(rows: Sequence[Row]) -> dict[str, Any]:
    with_it, without = (sum(turn["forwards"] for turn in _turns(rows, arm)) for arm in (HIERCHAT, NO_HISTORY))
    return {
        "questions": len(rows),
        "speed": _middle(_speedups(rows, HIERCHAT, NO_HISTORY), 3),
        "forwards": round(without / with_it, 3) if with_it else None,
    }


def _plan_ms(turns: Sequence[Turn]) -> dict[str, float] | None:
    """Return milliseconds per token of a fixed plan, as expected before each reply and as measured; None for other
    arms."""
    known = [
        turn for turn in turns if turn.get("expected_ms") is not None and turn.get("step_ms") is not None
    ]
    tokens = _tokens(known)
    if not tokens:
        return None
    return {
        kind: round(sum(turn[f"{key}_ms"] * len(turn["reply"]) for turn in known) / tokens, 3)
        for kind, key in (("expected", "expected"), ("measured", "step"))
    }


def merged_repeats(rows: Sequence[Row]) -> list[Row]:
    """Return one row per question: of each of its turns the first answer, with medians of the repeats' times. A repeat
    with another answer stands for itself, so that it is counted as a mismatch."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        replies = tuple((arm, str([turn["reply"] for turn in turns])) for arm, turns in row["arms"].items())
        groups.setdefault((row["question"], replies), []).append(row)
    return [_merged(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merged(rows: Sequence[Row]) -> Row:
    arms = {}
    for arm, turns in rows[0]["arms"].items():
        arms[arm] = [
            turn
            | {
                key: median(values)
                for key in ("seconds", "first_seconds", "draft_ms")
                if None not in (values := [row["arms"][arm][at][key] for row in rows])
            }
            for at, turn in enumerate(turns)
        ]
    return {**rows[0], "arms": arms}


def _figures(rows: Sequence[Row], arm: str) -> dict[str, Any]:
    turns = _turns(rows, arm)
    forwards = sum(turn["forwards"] or 0 for turn in turns)
    tokens = _tokens(turns)
    return {
        "tokens": tokens,
        "seconds": round(_seconds(turns), 3),
        "tokens_per_second": _middle(_rates(rows, arm), 2),
        "speedup": _middle(_speedups(rows, arm), 3),
        "tokens_per_forward": round(tokens / forwards, 3) if forwards else None,
    }


def _by(rows: Sequence[Row], arm: str, key: Callable[[Row], str]) -> dict[str, dict[str, Any]]:
    return {
        name: _figures([row for row in rows if key(row) == name], arm)
        for name in dict.fromkeys(key(row) for row in rows)
    }


def _turns(rows: Iterable[Row], arm: str) -> list[Turn]:
    return [turn for row in rows for turn in row["arms"][arm]]


def _tokens(turns: Iterable[Turn]) -> int:
    return sum(len(turn["reply"]) for turn in turns)


def _seconds(turns: Iterable[Turn]) -> float:
    return sum(turn["seconds"] for turn in turns)


def _rates(rows: Sequence[Row], arm: str) -> list[float]:
    """Return the tokens a second of each question that took any time."""
    return [rate for row in rows if (rate := _rate(row, arm))]


def _rate(row: Row, arm: str) -> float | None:
    turns = row["arms"][arm]
    seconds = _seconds(turns)
    return _tokens(turns) / seconds if seconds else None


def _speedups(rows: Sequence[Row], arm: str, baseline: str = VANILLA) -> list[float]:
    both = [row for row in rows if baseline in row["arms"]]
    rates = ((_rate(row, arm), _rate(row, baseline)) for row in both)
    return [mine / plain for mine, plain in rates if mine and plain]


def _quartiles(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    cuts = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return [round(cut, 3) for cut in cuts]


def _middle(values: Sequence[float], digits: int) -> float | None:
    return round(median(values), digits) if values else None


def _mismatches(rows: Sequence[Row], arm: str, baseline: str) -> int | None:
    compared = [row for row in rows if baseline in row["arms"]]
    return sum(_differs(row["arms"][baseline], row["arms"][arm]) for row in compared) if compared else None


def _differs(plain: Sequence[Turn], other: Sequence[Turn]) -> bool:
    """Tell whether a reply differs, at most one per question: after it, the prompts differ, too."""
    return any(
        one is None or two is None or one["reply"] != two["reply"] for one, two in zip_longest(plain, other)
    )
