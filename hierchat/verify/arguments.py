"""The flags of `verify`, and those that bench shares with it.

Imports nothing heavy: every command line is parsed here first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

LINES = "JSON lines with `turns`, and `category`, or `day` and `kind`"


def add_verify(commands: Any) -> None:
    """`verify`."""
    verify = commands.add_parser("verify", help="the same words with drafting on and off, token for token")
    verify.add_argument("--questions", type=Path, required=True, metavar="FILE", help=LINES)
    verify.add_argument(
        "--drafter",
        choices=("default", "stack", "random", "adversarial"),
        default="default",
        help="the program's own, all draft models at every step, noise, or the target's second choices",
    )
    add_run(verify)


def add_request(parser: argparse.ArgumentParser) -> None:
    """How many questions, how replies are chosen, by which model."""
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="questions, evenly over the groups; or chats"
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="per reply (256)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--model", metavar="NAME", help="a name from `models list`")
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
        help="texts that draft beside the seed pack, as for `corpus add`",
    )
    parser.add_argument("--json", type=Path, required=True, metavar="OUT", help="where the figures go")
    parser.add_argument("--resume", action="store_true", help="go on from OUT")


def positive(text: str) -> int:
    """A number of a flag. Raises argparse.ArgumentTypeError below 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number
