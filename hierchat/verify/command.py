"""`hierchat verify`, from the command line to a run and back."""

from __future__ import annotations

import argparse

from hierchat.verify.asking.progress import bar
from hierchat.verify.asking.questions import spread
from hierchat.verify.asking.request import STOPPED, Request, answered, say
from hierchat.verify.check import Compared, check


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
