"""`hierchat verify`, from the command line to a run and back."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from hierchat.checks.doctor import Finding, anonymous
from hierchat.checks.exactness import Compared, check
from hierchat.checks.questions import spread
from hierchat.checks.request import STOPPED, Request, answered, bar, say
from hierchat.config import data_dir


def run(args: argparse.Namespace) -> int:
    """The exit code: 0, 1 for words that differ, 2 for an error, 130 for Ctrl-C."""
    return answered(args, _verify)


def _verify(args: argparse.Namespace) -> int:
    request = Request(args, "verify", {"drafters": args.drafter, "users": args.users})
    questions = spread(request.questions, args.limit)
    hosted = request.load(places=args.users)
    shown = {key: request.said[key] for key in ("temperature", "seed")}
    head = request.head(hosted) | {"exact": hosted.engine.exact} | shown
    found = request.earlier(head)
    result = Compared(args.json, head, args.drafter, found["done"] if found else ())
    stopped = False
    try:
        with bar(len(questions), len(result.rows)) as tell:
            check(hosted, questions, request.settings, result, tell, width=args.width, users=args.users)
    except KeyboardInterrupt:
        stopped = True
    said = result.as_dict()
    print(
        f"{said['questions']:,} questions, {said['tokens']:,} tokens compared, {said['mismatches']} replies differ."
    )
    for name, figures in said["by_drafter"].items():
        print(
            f"  {name}: {figures['tokens']:,} tokens, {figures['tokens_per_forward']} per forward, "
            f"{figures['mismatches']} replies differ"
        )
    for difference in said["first"]:
        print("  " + ", ".join(f"{key} {value}" for key, value in difference.items()))
    if stopped:
        say(STOPPED)
    return 1 if result.mismatches else 130 if stopped else 0


# The command: a list in Markdown, ready to be pasted; what is wrong stands at its end, with what to do.


def run_doctor(args: argparse.Namespace) -> int:
    """One of the two reports."""
    if args.gpu:
        from hierchat.checks.gpu import try_gpu

        return try_gpu(args.model, args.device)
    return doctor(args.db)


def doctor(given: Path | None) -> int:
    """Prints the report; 1 where something is wrong."""
    from hierchat.checks.doctor import computed, database, errors, gpus, kernels, machine, models, versions

    path = (given or data_dir() / "hierchat.db").expanduser().absolute()
    devices = gpus()
    device = "cuda" if any("GB" in one.text or "MB" in one.text for one in devices) else "cpu"
    sections: dict[str, Callable[[], list[Finding]]] = {
        "Program": versions,
        "Machine": machine,
        "GPU": lambda: devices,
        "Computed by": computed,
        "Kernels": kernels,
        "Models": lambda: models(device),
        "Database": lambda: database(path, named=given is not None),
        "Log": errors,
    }
    wrong: list[Finding] = []
    for name, look in sections.items():
        print(f"- **{name}**", flush=True)
        for one in _looked(name, look):
            print(anonymous(f"  - {one.text}"), flush=True)
            wrong += [one] if one.advice else []
    print("- **What to do**" if wrong else "- **Nothing is wrong**")
    for one in wrong:
        print(anonymous(f"  - {one.text.split(',')[0]}. {one.advice}"))
    return 1 if wrong else 0


def _looked(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """What a section finds; a failure of its own is a line, too: the rest of the report is still wanted."""
    try:
        return look()
    except Exception as error:
        return [Finding(f"{name.lower()} could not be looked at: {type(error).__name__}", "Report this.")]
