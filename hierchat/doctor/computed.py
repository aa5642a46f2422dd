"""Which way computed each model of transformers when it was loaded last, and why nothing faster did."""

from __future__ import annotations

from hierchat.doctor.finding import Finding
from hierchat.engine.backends import RUNGS
from hierchat.engine.landings import Landed, landings

_ADVICE = "Run `hierchat doctor --gpu` and report what it prints."


def computed() -> list[Finding]:
    """One line for each model and device."""
    return [_finding(one) for one in landings()] or [Finding("no model was computed by transformers yet")]


def _finding(one: Landed) -> Finding:
    by = RUNGS.get(one.rung, "nothing")
    ties = f"; a draft may change a word at a near tie ({one.inexact})" if one.inexact else ""
    fell = "".join(f"; {RUNGS.get(rung, rung)} failed: {reason}" for rung, reason in one.failed.items())
    return Finding(f"{one.model}, on {one.device}: {by}{ties}{fell}", _ADVICE if one.failed else "")
