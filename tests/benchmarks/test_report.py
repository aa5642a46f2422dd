"""From raw figures to those that are reported: summaries, tables, plots and documents."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from benchmarks.report import DOCUMENT, draw_document
from benchmarks.summary import Row, merged_repeats, summarise
from benchmarks.tabulate import show


def turn(reply: list[int], seconds: float, forwards: int | None = None, **changed: Any) -> dict[str, Any]:
    usual = {"first_seconds": 0.1, "draft_ms": None if forwards is None else 2.0 * forwards, "sources": {}}
    return {"reply": reply, "seconds": seconds, "forwards": forwards, **usual, **changed}


def row(number: int, group: str, day: int | None = None, **arms: list[dict[str, Any]]) -> Row:
    arms = {name.replace("_", "."): turns for name, turns in arms.items()}
    return {"question": number, "name": str(number), "group": group, "day": day, "arms": arms}


ROWS = [
    row(
        0,
        "qa",
        vanilla=[turn([1, 2, 3, 4], 4.0, 4)],
        hierchat=[turn([1, 2, 3, 4], 2.0, 2, sources={"target": 2, "context": 2})],
        llama_cpp=[turn([1, 2], 1.0)],
    ),
    row(
        1,
        "rag",
        vanilla=[turn([5, 6], 1.0, 2), turn([7, 8], 1.0, 2)],
        hierchat=[turn([5, 6], 1.0, 1, sources={"target": 1, "history": 1}), turn([7, 9], 1.0, 1)],
        llama_cpp=[turn([5, 7], 0.5), turn([7, 9], 0.5)],
    ),
]


def test_speeds_are_medians_of_questions() -> None:
    rows = [
        row(n, "qa", vanilla=[turn([1, 2], plain, 2)], hierchat=[turn([1, 2], drafted, 1)])
        for n, (plain, drafted) in enumerate([(1.0, 1.0), (2.0, 1.0), (40.0, 10.0)])  # 43 s over 12 s: 3.58x
    ]
    figures = summarise(rows, "hierchat")
    assert (figures["speedup"], figures["tokens_per_second"]) == (2.0, 2.0)
    assert (figures["by_group"]["qa"]["speedup"], figures["quartiles"]["speedup"][1]) == (2.0, 2.0)
    assert summarise(rows, "vanilla")["tokens_per_second"] == 1.0


def test_sums_and_ratios() -> None:
    figures = summarise(ROWS, "hierchat")
    assert (figures["tokens"], figures["seconds"], figures["questions"]) == (8, 4.0, 2)
    assert figures["tokens_per_second"] == 2.0
    assert figures["speedup"] == pytest.approx(2.0 / (8 / 6), abs=1e-3)
    assert figures["tokens_per_forward"] == 2.0
    assert figures["draft_ms"] == 2.0
    assert figures["mismatches"] == 1
    assert figures["sources"] == {"target": 0.5, "context": 0.3333, "history": 0.1667}
    assert figures["quartiles"]["speedup"] == [1.25, 1.5, 1.75]
    assert figures["by_group"]["qa"]["speedup"] == 2.0
    assert figures["by_group"]["rag"]["speedup"] == 1.0
    assert "by_day" not in figures


def test_repeats_count_by_their_medians() -> None:
    repeats = [
        {**row(0, "qa", vanilla=[turn([1, 2], 4.0, 2)], hierchat=[turn([1, 2], seconds, 1)]), "repeat": n}
        for n, seconds in enumerate((2.0, 1.0, 9.0))
    ]
    figures = summarise(merged_repeats(repeats), "hierchat")
    assert (figures["questions"], figures["seconds"], figures["speedup"]) == (1, 2.0, 2.0)
    repeats[2]["arms"]["hierchat"] = [turn([1, 3], 9.0, 1)]
    assert summarise(merged_repeats(repeats), "hierchat")["mismatches"] == 1


def test_what_the_history_brings_is_told_on_the_same_words() -> None:
    names = ("vanilla", "no-history", "hierchat")
    rows = [
        {
            **row(day, group, day),
            "arms": {name: [turn([1, 2, 3, 4], *one)] for name, one in zip(names, arms, strict=True)},
        }
        for day, group, arms in (
            (1, "code", ((4.0, 4), (3.0, 3), (3.0, 3))),
            (2, "code", ((4.0, 4), (3.0, 3), (2.0, 2))),
            (9, "again", ((4.0, 4), (4.0, 4), (1.0, 1))),
        )
    ]
    gains = summarise(rows, "hierchat")["history"]
    assert gains["all"] == {"questions": 3, "speed": 1.5, "forwards": round(10 / 6, 3)}
    assert gains["code"] == {"questions": 2, "speed": 1.25, "forwards": 1.2}
    assert [gains[f"{name} third"]["speed"] for name in ("first", "second", "last")] == [1.0, 1.5, 4.0]
    assert "history" not in summarise(rows, "no-history")
    assert "history" not in summarise(ROWS, "hierchat")
    lines = io.StringIO()
    result = {"arms": [summarise(rows, name) for name in names], "questions": rows, "absent": []}
    show(result, Console(file=lines, width=100))
    assert re.search(r"again +1 +4\.00x +4\.00x", lines.getvalue())


def test_the_document_is_what_the_results_draw() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == draw_document(), "run: python -m benchmarks report"
