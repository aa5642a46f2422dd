"""Run the measurement that a command line of `python -m benchmarks` names."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import psutil

from benchmarks import (
    agreement,
    decode,
    forward,
    gpu,
    index,
    load,
    prompts,
    record,
    replay,
    report,
    retrieval,
    session,
    simulate,
    soak,
    start,
    step,
    tabulate,
    tokens,
)
from benchmarks.arms import DRAFT, OWN, PLAN, Arm, Carried, OwnArm, parse_arms
from benchmarks.measured_run import STOPPED, MeasuredRun, RunOptions
from benchmarks.page import measure as page
from benchmarks.peers.arm import Weights, open_peer
from benchmarks.peers.environment import ArmError, unknown
from benchmarks.record import CHOICE, read_traces
from benchmarks.tabulate import show, show_tables
from benchmarks.vllm import measure as inside_vllm
from hierchat.checks.runs import (
    RequestError,
    answered,
    bar,
    machine,
    say,
    spread,
)
from hierchat.cli.options import terminal_progress
from hierchat.drafting.source import Source
from hierchat.models.cache import sha256
from hierchat.models.catalogue import Backend, ModelEntry, nearest, read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from hierchat.models.progress import ModelError
from hierchat.runtime.prompt import control_tokens
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.corpora import statistics

BUSY_SECONDS, BUSY_PERCENT = 0.5, 10
"""How long to look whether the machine is quiet, and what is not."""


def run(args: argparse.Namespace) -> int:
    """Run a measurement and return the exit code: 0, 2 for an error, 130 for Ctrl-C; of a session, 1 for words that
    differ or an error."""
    if args.kind == "session":
        return session.run(
            args.questions, args.model, args.turns, args.max_new_tokens, args.temperature, args.json
        )
    return answered(lambda: _measured(args), getattr(args, "json", None))


def _measured(args: argparse.Namespace) -> int:
    if (backend := getattr(args, "backend", None)) and backend not in get_args(Backend):
        raise RequestError(f"No backend is called {backend!r}. {nearest(backend, get_args(Backend))}")
    return _KINDS[args.kind](args)


def _decode(args: argparse.Namespace) -> int:
    names = parse_arms(args.arms)
    carry = args.kind == "log"
    history = getattr(args, "history", None)
    own = {"arms": names, "repeats": args.repeats, "draft": args.draft, "history": history}
    request = MeasuredRun(RunOptions.of(vars(args)), "log" if carry else "decode", own)
    questions = request.questions[: args.limit] if carry else spread(request.questions, args.limit)
    busy = psutil.cpu_percent(BUSY_SECONDS)
    if busy > BUSY_PERCENT:
        say(f"Other programs use {busy:.0f} % of the cores: the figures will suffer.")
    served = request.load()
    result = decode.Measured(args.json, {**request.head(served), "busy_percent": busy}, names)
    found = request.earlier(result.head)
    if found:
        result.rows = found["questions"]
    draft = read_catalogue().entry(args.draft) if args.draft else None
    beside = [index.synthetic_history(history)] if history else []
    arms = _open(names, served, request.entry, draft, args.width, request.threads, result, beside)
    stopped = False
    try:
        with bar(len(questions) * args.repeats, len(result.rows)) as tell:
            decode.measure(
                served, arms, questions, request.settings, result, tell, carry=carry, repeats=args.repeats
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
    served: ServedModel,
    entry: ModelEntry,
    draft: ModelEntry | None,
    width: int | None,
    threads: int,
    result: decode.Measured,
    beside: Sequence[Source] = (),
) -> list[Arm]:
    """Open the arms that can run; the others go to `result.absent`."""
    arms: list[Arm] = []
    for name in names:
        try:
            if name in OWN or name.startswith((DRAFT, PLAN)):
                arms.append(OwnArm(name, served, width, beside))
                continue
            peer = open_peer(name, Weights(entry, served, draft), threads, say)
            arms.append(peer)
            result.head["machine"].setdefault("peers", {})[name] = peer.versions
        except (ArmError, ModelError, OSError) as error:
            result.absent[name] = str(error)
            say(f"{name} is absent: {error}")
    return arms


def _load(args: argparse.Namespace) -> int:
    names = parse_arms(args.arms)
    request = MeasuredRun(RunOptions.of(vars(args)), "load", {"arms": names, "users": args.users})
    questions = spread(request.questions, args.limit)
    served = request.load(places=max(args.users))
    result = decode.Measured(args.json, request.head(served), names)
    arms = _open(names, served, request.entry, None, args.width, request.threads, result)
    try:
        with bar(len(arms) * len(args.users) * args.repeats) as tell:
            figures = load.measure(
                served, arms, questions, request.settings, args.users, tell, repeats=args.repeats
            )
    finally:
        for arm in arms:
            arm.close()
    absent = [{"arm": arm, "reason": reason} for arm, reason in result.absent.items()]
    return _show({**result.head, "absent": absent, "loads": figures}, args.json)


def _record(args: argparse.Namespace) -> int:
    request = MeasuredRun(RunOptions.of(vars(args)), "record", {})
    served = request.load()
    said = {"model": served.name, "backend": request.head(served)["backend"]}
    said |= {key: request.recorded[key] for key in CHOICE}
    done = record.earlier(args.json, said)
    log = any(question.day is not None for question in request.questions)  # then their order counts
    questions = request.questions[: args.limit] if log else spread(request.questions, args.limit)
    try:
        with bar(len(questions)) as tell:
            too_long = record.record(served, questions, request.settings, args.json, said, tell, done)
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
        raise RequestError("Without a model nobody knows what drafts cost: say --width or --cost.")
    traces = read_traces(args.traces)[: args.limit]
    entry = read_catalogue().entry(args.model or traces[0].model)
    with terminal_progress() as report:
        tokenizer = load_tokenizer(entry, report)
        texts = statistics(entry, tokenizer, args.corpus, stored=False, report=report)
    costs = replay.GivenCosts(*args.cost) if args.cost else None
    served = replay.without_model(costs, texts, control_tokens(tokenizer))
    carried = [Carried(name, served, args.width) for name in names]
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
    """Print the figures, and write them where asked."""
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    return 0


def _forward(args: argparse.Namespace) -> int:
    result = forward.measure(args)
    _show(result, args.json)
    show_tables(tabulate.forward_tables(result))
    return 0


def _gpu(args: argparse.Namespace) -> int:
    if not args.all:
        return gpu.try_gpu(args.model, args.device)
    if args.json is None:
        raise RequestError("--all writes each part as it ends: name a file with --json.")
    return gpu.measure_parts(args.minutes, args.json, args.device, args.resume)


def _vllm(args: argparse.Namespace) -> int:
    result = inside_vllm.measure(args)
    _show(result, args.json)
    show_tables(tabulate.vllm_tables(result))
    return 0


def _report(args: argparse.Namespace) -> int:
    if args.files:
        print(report.write(args.files, args.out or Path(".")))
    else:
        report.DOCUMENT.write_text(report.draw_document(), encoding="utf-8")
        print(report.DOCUMENT)
    return 0


_KINDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "decode": _decode,
    "log": _decode,
    "load": _load,
    "record": _record,
    "replay": _replay,
    "report": _report,
    "index": index.measure,
    "prompts": prompts.measure,
    "step": step.measure,
    "retrieval": retrieval.measure,
    "simulate": lambda args: simulate.run(args.json),
    "forward": _forward,
    "gpu": _gpu,
    "agreement": lambda args: _show(agreement.measure(args), args.json),
    "tokens": lambda args: _show(tokens.measure(args), args.json),
    "soak": lambda args: _show(soak.measure(args), args.json),
    "start": lambda args: _show(start.measure(args), args.json),
    "page": page.measure,
    "vllm": _vllm,
}
"""What does the work of each command."""
