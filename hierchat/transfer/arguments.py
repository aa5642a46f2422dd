"""The flags of import, export, backup and forget."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_transfer(commands: Any) -> None:
    """The commands."""
    bring_in = commands.add_parser(
        "import", help="chats of ChatGPT, LM Studio, Open WebUI or another hierchat into yours"
    )
    bring_in.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON as it was exported, its zip, or a folder"
    )
    bring_out = commands.add_parser("export", help="your chats as files")
    bring_out.add_argument("out", type=Path, metavar="OUT", help="a new file; for Markdown, a new folder")
    bring_out.add_argument(
        "--format",
        choices=("json", "markdown"),
        default="json",
        help="json: everything, for `hierchat import` (the default); markdown: to read, a file for each chat",
    )
    bring_out.add_argument(
        "--conversation", type=int, metavar="ID", help="this one alone: the number behind ?c= in its address"
    )
    backup = commands.add_parser("backup", help="a copy of the database, while the chat may run")
    backup.add_argument("out", type=Path, metavar="OUT", help="a new file")
    forget = commands.add_parser("forget", help="delete all chats of a user for good")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (bring_in, bring_out, forget):
        _add_user(parser)
    for parser in (bring_in, bring_out, backup, forget):
        parser.add_argument("--db", type=Path, metavar="FILE", help="the database")


def _add_user(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="whose: local, of a page without a login (the default), or that of an account",
    )
