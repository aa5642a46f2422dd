"""Measure one conversation of several turns, as the page would hold it: start, memory, speed, restart.

Each turn is asked twice, vanilla and speculative in random order (the page's Compare), so that the speed-up is
measured turn by turn within one run, and equality of the words is checked on the way.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.measured_run import settings_of
from hierchat.chat.completions import NotBegun
from hierchat.chat.frames import CompareFrame, Verdict
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.checks import runs
from hierchat.checks.runs import RequestError, machine, read_questions
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import read_catalogue
from hierchat.models.progress import ModelError
from hierchat.runtime.loading import load_served_model
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store import Store, StoreError

CONVERSATION = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Now add a docstring and type hints to that function.",
    "Explain the function line by line.",
    "Rewrite it without recursion.",
    "Write three unit tests for it.",
    "Give me a packing list for a weekend in the mountains.",
    "Repeat the list, sorted by weight, heaviest first.",
    "Shorten the list to the five most important things.",
    "Write a short e-mail that sends this list to a friend.",
    "Make the e-mail more formal.",
)
"""What is asked where no file is named."""


def run(
    questions: Path | None,
    model: str | None,
    turns: int,
    max_new_tokens: int,
    temperature: float,
    out: Path | None,
) -> int:
    """Print a line per turn and the medians; write JSON where asked. Return the exit code."""
    try:
        asked = read_turns(questions, turns)
        settings = settings_of(max_new_tokens=max_new_tokens, temperature=temperature)
        if out:
            runs.require_writable(out)
        with tempfile.TemporaryDirectory() as folder:
            result = _session(Path(folder) / "session.db", model, asked, settings)
    except (RequestError, ModelError, StoreError) as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 1
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            print(f"hierchat: {out} cannot be written; the figures stand above. ({error})", file=sys.stderr)
            return 1
    return 0 if result["mismatches"] == 0 else 1


def read_turns(path: Path | None, limit: int) -> list[str]:
    """Return the first `limit` user messages, in order. Raises RequestError."""
    if path is None:
        return list(CONVERSATION[:limit])
    return [turn for question in read_questions(path) for turn in question.turns][:limit]


def _session(path: Path, model: str | None, asked: list[str], settings: GenerationSettings) -> dict[str, Any]:
    began = time.perf_counter()
    slot = ready_slot(model)
    ready = time.perf_counter() - began
    with Store.open(path) as store:
        rows = _talk(ChatService(store, slot), asked, settings)
    with Store.open(path) as store:  # as a restart would find it
        user = store.users.ensure("bench")
        kept = store.messages.path(user, store.chats.find(user)[0].id)
    assert slot.model is not None
    return {
        "machine": machine(),
        "model": slot.model.name,
        "backend": slot.model.engine.backend,
        "ready_seconds": round(ready, 2),
        "peak_memory_mib": _peak_mib(),
        "turns": rows,
        "mismatches": sum(not row["identical"] for row in rows),
        "median_speedup": round(median(row["speedup"] for row in rows), 2),
        "tokens_per_second": round(_rate(rows, "speculative_seconds"), 1),
        "vanilla_tokens_per_second": round(_rate(rows, "vanilla_seconds"), 1),
        "messages_after_restart": len(kept),
    }


def ready_slot(model: str | None) -> ModelSlot:
    """Return a slot with the model loaded. Raises RequestError if it cannot be."""
    catalogue = read_catalogue()
    # Without the corpora that this user added: figures must not depend on them
    slot = ModelSlot(
        catalogue, load=lambda name, report: load_served_model(catalogue.entry(name), report=report)
    )
    slot.start(catalogue.entry(model).name)
    while slot.status.phase not in ("ready", "failed"):
        time.sleep(0.02)
    if slot.status.phase == "failed":
        raise RequestError(slot.status.message)
    return slot


def _talk(service: ChatService, asked: list[str], settings: GenerationSettings) -> list[dict[str, Any]]:
    user = service.store.users.ensure("bench")
    conversation = service.store.chats.create(user)
    parent: int | None = None
    rows = []
    for number, text in enumerate(asked, 1):
        last: CompareFrame | None = None
        try:
            question = NewQuestion(conversation, parent, text)
            for frame in service.compare(user, question, settings, threading.Event()):
                last = frame
        except (MessageTooLong, NotBegun) as error:
            raise RequestError(str(error)) from error
        if last is None or last.verdict is None:
            raise RequestError(last.arms["second"].notice or "no reply" if last else "no reply")
        row = _row(number, last, last.verdict)
        parent = last.arms["second"].message_id
        rows.append(row)
        print(
            f"turn {number}: {row['tokens']} tokens, {row['speedup']}x, T {row['tokens_per_forward']}, "
            f"{'identical' if row['identical'] else 'DIFFERENT'}",
            file=sys.stderr,
        )
    return rows


def _row(number: int, frame: CompareFrame, verdict: Verdict) -> dict[str, Any]:
    figures, plain = frame.arms["second"].figures, frame.arms["first"].figures
    return {
        "turn": number,
        "tokens": figures.tokens,
        "identical": verdict.identical,
        "speedup": round(verdict.speedup or 0.0, 2),
        "tokens_per_forward": round(figures.tokens_per_forward or 0.0, 2),
        "speculative_seconds": round(figures.seconds, 3),
        "vanilla_seconds": round(plain.seconds, 3),
        "shares": {name: round(share, 2) for name, share in figures.shares.items()},
    }


def _rate(rows: list[dict[str, Any]], seconds: str) -> float:
    return sum(row["tokens"] for row in rows) / sum(row[seconds] for row in rows)


def _peak_mib() -> int:
    process = psutil.Process()
    peak = getattr(process.memory_info(), "peak_wset", 0)
    if not peak:
        try:
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) // 1024
        except (OSError, IndexError):
            peak = process.memory_info().rss
    return peak // 2**20
