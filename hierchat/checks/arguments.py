"""The flags of `verify`, and those that bench shares with it.

Imports nothing heavy: every command line is parsed here first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

LINES = "JSON lines with `turns`, and `category`, or `day` and `kind`"
LONG_CONTEXT = "long-context"
WORKLOADS = ("copy", LONG_CONTEXT)
"""Questions that are made here (asking/workloads.py)."""
DRAFTERS = {
    "default": "the program's own",
    "stack": "all draft models at every step",
    "random": "noise",
    "adversarial": "the target's second choices",
}
"""What may draft in `verify` (check.py makes them)."""


def add_verify(commands: Any) -> None:
    """`verify`."""
    verify = commands.add_parser("verify", help="the same words with drafting on and off, token for token")
    add_asked(verify)
    verify.add_argument(
        "--drafter",
        type=_drafters,
        default=["default"],
        metavar="A,B,...",
        help="; ".join(f"{name}: {what}" for name, what in DRAFTERS.items()) + " (default)",
    )
    verify.add_argument(
        "--users", type=positive, default=1, metavar="N", help="so many ask at once, and share forwards (1)"
    )
    add_run(verify)


def add_asked(parser: argparse.ArgumentParser) -> None:
    """A file of questions, or a workload that is made here."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--questions", type=Path, metavar="FILE", help=LINES)
    asked.add_argument(
        "--workload",
        choices=WORKLOADS,
        help="made here: a text of 1,500 tokens to copy with a change; questions about a long text",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=numbers,
        metavar="N,N,...",
        help=f"how long prompts of --workload {LONG_CONTEXT} are (by default as long as fits, 8,192 at most)",
    )


def add_request(parser: argparse.ArgumentParser) -> None:
    """How many questions, how replies are chosen, by which model."""
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="questions, evenly over the groups; or chats"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="per reply (256)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="as in the chat; 1, the default, is off"
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="as in the chat; 0, the default, is off"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--model", metavar="MODEL", help="a name from `models list`, a folder, or a GGUF file"
    )
    parser.add_argument("--backend", metavar="NAME", help="such as blocks or float32; by default the fastest")


def add_run(parser: argparse.ArgumentParser) -> None:
    """The same, what drafts, and the file of the run."""
    add_request(parser)
    parser.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="positions per forward: N - 1 drafts (by default the program's)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="PATH",
        help="texts that draft beside those that ship, as for `corpus add`",
    )
    parser.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    parser.add_argument("--resume", action="store_true", help="go on from OUT")


def numbers(text: str) -> list[int]:
    """Numbers of a flag, separated by commas. Raises argparse.ArgumentTypeError where one is below 1."""
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    """A number of a flag. Raises argparse.ArgumentTypeError below 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _drafters(text: str) -> list[str]:
    """Names out of "A,B,...", each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in DRAFTERS:
            raise argparse.ArgumentTypeError(
                f"no drafter is called {name!r}; there are {', '.join(DRAFTERS)}"
            )
    return names
