"""The command: a list in Markdown, ready to be pasted; what is wrong stands at its end, with what to do."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hierchat.config import data_dir
from hierchat.doctor.finding import Finding, anonymous


def add_doctor(commands: Any) -> None:
    """The flags."""
    parser = commands.add_parser(
        "doctor", help="machine, versions, kernels, models and database, to paste into a report"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="try every way to compute on the GPU, compare words, measure (three minutes)",
    )
    parser.add_argument("--model", metavar="NAME", help="with --gpu: measure this one, too")
    parser.add_argument("--device", choices=("cuda", "mps", "cpu"), help="with --gpu: try this one")


def run(args: argparse.Namespace) -> int:
    """One of the two reports."""
    if args.gpu:
        from hierchat.doctor.gpu.command import try_gpu

        return try_gpu(args.model, args.device)
    return doctor(args.db)


def doctor(given: Path | None) -> int:
    """Prints the report; 1 where something is wrong."""
    from hierchat.doctor.computed import computed
    from hierchat.doctor.database import database
    from hierchat.doctor.kernels import kernels
    from hierchat.doctor.log import errors
    from hierchat.doctor.machine import gpus, machine
    from hierchat.doctor.models import models
    from hierchat.doctor.versions import versions

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
