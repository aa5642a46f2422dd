"""The flags of `hierchat users`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_users(commands: Any) -> None:
    """The command."""
    users = commands.add_parser("users", help="accounts for the page's login")
    actions = users.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="a new account; its password is asked for, or read from stdin")
    add.add_argument("name", metavar="NAME", help="letters, digits and . _ - @")
    add.add_argument(
        "--owner",
        action="store_true",
        help="may fetch and remove models, back up, and see and end logins (the first account may anyway)",
    )
    listed = actions.add_parser("list", help="all accounts, and what each has stored")
    remove = actions.add_parser("remove", help="nobody logs in with it any more; its chats stay")
    remove.add_argument("name", metavar="NAME")
    passwd = actions.add_parser("passwd", help="another password; whoever is logged in with it is logged out")
    passwd.add_argument("name", metavar="NAME")
    for parser in (add, listed, remove, passwd):
        parser.add_argument("--db", type=Path, metavar="FILE", help="the database")
