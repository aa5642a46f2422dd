"""`python -m hierchat bench decode`, `bench log` and `verify`: from the command line to a run and back.

All return the process's exit code: 0, 1 for words that differ (verify), 2 for an error, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from hierchat.bench import (
    agreement,
    decode,
    forward,
    index,
    load,
    record,
    replay,
    report,
    simulate,
    start,
    verify,
)
from hierchat.bench.arms import DRAFT, OWN, Arm, Carried, OwnArm, parse_arms
from hierchat.bench.asked import Asked, require_usable, say
from hierchat.bench.errors import ArmError, BenchError, unknown
from hierchat.bench.machine import machine
from hierchat.bench.peers import PeerArm, open_peer
from hierchat.bench.plans import PLAN
from hierchat.bench.progress import bar
from hierchat.bench.questions import QuestionsError, spread
from hierchat.bench.table import show
from hierchat.bench.traces import read_traces
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.statistics import statistics
from hierchat.drafting.source import Source
from hierchat.engine.errors import OutOfMemory, UnsupportedModel
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.models.cache import sha256
from hierchat.models.catalogue import ModelEntry, read_catalogue
from hierchat.models.errors import ModelError
from hierchat.models.load_tokenizer import load_tokenizer
from hierchat.models.terminal import terminal_progress
from hierchat.runtime.hosted import Hosted

ERRORS = (
    ArmError,
    BenchError,
    CorpusError,
    QuestionsError,
    ModelError,
    UnsupportedModel,
    BrokenLogits,
    OutOfMemory,
    MemoryError,
)
BUSY_SECONDS, BUSY_PERCENT = 0.5, 10
"""How long to look whether the machine is quiet, and what is not."""
STOPPED = "Stopped. What was measured is kept; the same command with --resume goes on."


def run(args: argparse.Namespace) -> int:
    """Does what was asked, or says why not."""
    try:
        require_usable(args)
        if args.command == "verify":
            return _verify(args)
        if args.kind in ("forward", "agreement"):
            return _show((forward if args.kind == "forward" else agreement).measure(args), args.json)
        if args.kind == "start":
            return _show(start.measure(args), args.json)
        if args.kind == "simulate":
            return simulate.run(args.json)
        if args.kind == "index":
            return index.measure(args)
        if args.kind == "report":
            print(report.write(args.files, args.out))
            return 0
        if args.kind == "replay":
            return _replay(args)
        if args.kind == "record":
            return _record(args)
        if args.kind == "load":
            return _load(args)
        return _decode(args)
    except ERRORS as error:
        say(f"hierchat: {str(error) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        say("Stopped before anything was measured.")
        return 130


def _decode(args: argparse.Namespace) -> int:
    names = parse_arms(args.arms)
    carry = args.kind == "log"
    history = getattr(args, "history", None)
    own = {"arms": names, "repeats": args.repeats, "draft": args.draft, "history": history}
    asked = Asked(args, "log" if carry else "decode", own)
    questions = asked.questions[: args.limit] if carry else spread(asked.questions, args.limit)
    busy = psutil.cpu_percent(BUSY_SECONDS)
    if busy > BUSY_PERCENT:
        say(f"Other programs use {busy:.0f} % of the cores: the figures will suffer.")
    hosted = asked.load()
    result = decode.Result(args.json, {**asked.head(hosted), "busy_percent": busy}, names)
    found = asked.earlier(result.head)
    if found:
        result.rows = found["questions"]
    draft = read_catalogue().entry(args.draft) if args.draft else None
    beside = [index.synthetic_history(history)] if history else []
    arms = _open(names, hosted, asked.entry, draft, args.width, asked.threads, result, beside)
    stopped = False
    try:
        with bar(len(questions) * args.repeats, len(result.rows)) as tell:
            decode.measure(
                hosted, arms, questions, asked.settings, result, tell, carry=carry, repeats=args.repeats
            )
    except KeyboardInterrupt:
        stopped = True
    finally:
        for arm in arms:
            arm.close()
    show(result.as_dict())
    if stopped:
        say(STOPPED)
    return 130 if stopped else 0


def _open(
    names: list[str],
    hosted: Hosted,
    entry: ModelEntry,
    draft: ModelEntry | None,
    width: int | None,
    threads: int,
    result: decode.Result,
    beside: Sequence[Source] = (),
) -> list[Arm]:
    """The arms that can run; the others go to `result.absent`."""
    arms: list[Arm] = []
    for name in names:
        try:
            if name in OWN or name.startswith((DRAFT, PLAN)):
                arms.append(OwnArm(name, hosted, width, beside))
                continue
            peer: PeerArm = open_peer(name, entry, draft, hosted.local, threads, say)
            arms.append(peer)
            result.head["machine"].setdefault("peers", {})[name] = peer.versions
        except (ArmError, ModelError, OSError) as error:
            result.absent[name] = str(error)
            say(f"{name} is absent: {error}")
    return arms


def _load(args: argparse.Namespace) -> int:
    names = parse_arms(args.arms)
    asked = Asked(args, "load", {"arms": names, "users": args.users})
    questions = spread(asked.questions, args.limit)
    hosted = asked.load()
    result = decode.Result(args.json, asked.head(hosted), names)
    arms = _open(names, hosted, asked.entry, None, args.width, asked.threads, result)
    try:
        with bar(len(arms) * len(args.users)) as tell:
            figures = load.measure(hosted, arms, questions, asked.settings, args.users, tell)
    finally:
        for arm in arms:
            arm.close()
    absent = [{"arm": arm, "reason": reason} for arm, reason in result.absent.items()]
    return _show({**result.head, "absent": absent, "loads": figures}, args.json)


def _verify(args: argparse.Namespace) -> int:
    asked = Asked(args, "verify", {"drafter": args.drafter})
    questions = spread(asked.questions, args.limit)
    hosted = asked.load()
    shown = {key: asked.said[key] for key in ("temperature", "seed", "drafter")}
    head = asked.head(hosted) | {"exact": hosted.engine.exact} | shown
    found = asked.earlier(head)
    result = verify.Result(args.json, head, found["done"] if found else ())
    stopped = False
    try:
        with bar(len(questions), len(result.rows)) as tell:
            verify.check(hosted, questions, asked.settings, args.drafter, result, tell, width=args.width)
    except KeyboardInterrupt:
        stopped = True
    said = result.as_dict()
    print(f"{said['questions']:,} questions, {said['tokens']:,} tokens, {said['mismatches']} replies differ.")
    for difference in said["first"]:
        print("  " + ", ".join(f"{key} {value}" for key, value in difference.items()))
    if stopped:
        say(STOPPED)
    return 1 if result.mismatches else 130 if stopped else 0


def _record(args: argparse.Namespace) -> int:
    asked = Asked(args, "record", {})
    hosted = asked.load()
    said = {"model": hosted.name, "backend": asked.head(hosted)["backend"]}
    said |= {key: asked.said[key] for key in ("max_new_tokens", "temperature", "seed")}
    done = record.earlier(args.json, said)
    log = any(question.day is not None for question in asked.questions)  # then their order counts
    questions = asked.questions[: args.limit] if log else spread(asked.questions, args.limit)
    try:
        with bar(len(questions)) as tell:
            too_long = record.record(hosted, questions, asked.settings, args.json, said, tell, done)
    except KeyboardInterrupt:
        say("Stopped. What was recorded is kept; the same command goes on.")
        return 130
    if too_long:
        say(f"{too_long} of {len(questions)} questions do not fit the model's context.")
    return 0


def _replay(args: argparse.Namespace) -> int:
    names = parse_arms(args.arms)
    for name in names:
        if name not in OWN:
            raise unknown("arm of our own", name, OWN)
    if not args.width and not args.cost:
        raise BenchError("Without a model nobody knows what drafts cost: say --width or --cost.")
    traces = read_traces(args.traces)[: args.limit]
    entry = read_catalogue().entry(args.model or traces[0].model)
    with terminal_progress() as report:
        texts = statistics(entry, load_tokenizer(entry, report), args.corpus, stored=False, report=report)
    costs = replay.Costs(*args.cost) if args.cost else None
    hosted = replay.without_model(costs, texts)
    carried = [Carried(name, hosted, args.width) for name in names]
    said = {"file": args.traces.name, "file_sha256": sha256(args.traces)}
    said |= {key: getattr(args, key) for key in ("limit", "width", "cost", "carry")}
    said["statistics"] = [text.name for text in texts]
    head = {"machine": machine(), "model": entry.name, "settings": {"kind": "replay", **said}}
    result = replay.Replayed(args.json, head, names)
    if not all(trace.top.size for trace in traces):
        say(f"{args.traces} lacks the target's likeliest tokens: who learns from them will fall short.")
    questions = len({trace.question for trace in traces})
    with bar(questions) as tell:
        replay.replay(carried, traces, costs, result, tell, carry=args.carry)
    result.write()
    show(result.as_dict())
    return 0


def _show(result: dict[str, Any], out: Path | None) -> int:
    """Prints the figures, and writes them where asked."""
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    return 0
