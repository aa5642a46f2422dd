"""The flags of `hierchat keys`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_keys(commands: Any) -> None:
    """The command."""
    keys = commands.add_parser("keys", help="keys with which other programs may use the model (serve --api)")
    actions = keys.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="a new key, shown once")
    add.add_argument("name", metavar="NAME", help="what it is for, such as the program's name")
    add.add_argument(
        "--history",
        action="store_true",
        help="keep what it asks and gets, so that this drafts its later replies; by default nothing is kept",
    )
    for flag, what in (
        ("--at-once", "replies that may be written at the same time"),
        ("--per-minute", "requests a minute"),
        ("--tokens-a-day", "tokens of prompts and replies a day"),
    ):
        add.add_argument(flag, type=_count, metavar="N", help=f"{what} (no limit)")
    listing = actions.add_parser("list", help="the keys that are there, without what opens")
    remove = actions.add_parser("remove", help="a key opens nothing any more; its history is deleted")
    remove.add_argument("name", metavar="NAME")
    for parser in (add, listing, remove):
        parser.add_argument("--db", type=Path, metavar="FILE", help="the database")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no limit; give a number from 1 up")
    return int(text)
