"""The flags of `hierchat users`."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from hierchat.cli.serve import add_page_flags
from hierchat.config import MOST_TOKENS
from hierchat.models.catalogue import Backend


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


# The flags of `hierchat keys`.


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


# Numbers as they are typed, behind a flag or a command.


_HOTTEST = 10.0
_MOST_SEED = 2**63 - 1


def temperature(text: str) -> float:
    """Raises ArgumentTypeError with a sentence."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= _HOTTEST:
        raise ArgumentTypeError(f"A temperature is a number from 0 to {_HOTTEST:g}, not {text!r}.")
    return value


def minutes(text: str) -> float:
    """Raises ArgumentTypeError with a sentence."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise ArgumentTypeError(f"Minutes are a number above 0, not {text!r}.")
    return value


def seed(text: str) -> int:
    """Raises ArgumentTypeError with a sentence."""
    return _whole(text, "A seed", 0, _MOST_SEED)


def tokens(text: str) -> int:
    """How long a reply may be. Raises ArgumentTypeError with a sentence."""
    return _whole(text, "The longest reply, in tokens,", 1, MOST_TOKENS)


def _whole(text: str, what: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or not least <= int(text) <= most:
        raise ArgumentTypeError(f"{what} is a whole number from {least} to {most:,}, not {text!r}.")
    return int(text)


# The flags of `hierchat chat` and `hierchat learn`.


def add_chat(commands: Any) -> None:
    """The command."""
    parser = commands.add_parser(
        "chat",
        help="a chat in the terminal; with a MESSAGE one answer, for scripts, too",
        description="A chat in the terminal. With a MESSAGE, or with text on standard input, it answers once.",
        epilog="Where a hierchat with `--api` runs on this machine, it answers; else this process loads the model.",
    )
    parser.add_argument(
        "message", nargs="*", metavar="MESSAGE", help="answered once; what is piped in goes with it"
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a name from `models list` (its default), a folder, or a GGUF file"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt of this chat")
    parser.add_argument("--temperature", type=temperature, metavar="N", help="0 takes the likeliest token")
    parser.add_argument("--seed", type=seed, metavar="N", help="same seed, same words")
    parser.add_argument("--max-new-tokens", type=tokens, metavar="N", help="the longest reply")
    parser.add_argument("--continue", action="store_true", dest="go_on", help="go on with your last chat")
    parser.add_argument(
        "--no-history", action="store_true", help="draft from no other chat of yours, and store nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object: the text and what was measured")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="the text as it is, without colours (the default where it is piped)",
    )
    parser.add_argument("--url", metavar="URL", help="a server that speaks OpenAI's protocol answers")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="load the model here, even where a hierchat runs that could answer",
    )
    parser.add_argument("--key", metavar="KEY", help="its key (HIERCHAT_KEY)")
    parser.add_argument(
        "--backend", choices=get_args(Backend), help="what computes the model in this process"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database")


def add_learn(commands: Any) -> None:
    """The command."""
    parser = commands.add_parser(
        "learn",
        help="let the model write for itself now: such texts make later replies faster",
        description=(
            "The model answers questions like yours, and prompts that come with hierchat. What it writes drafts your "
            "later replies; it stands in no chat. Ctrl-C stops it; the same command goes on."
        ),
    )
    parser.add_argument("--minutes", type=minutes, default=10.0, metavar="N", help="how long (10)")
    parser.add_argument(
        "--model", metavar="MODEL", help="a name from `models list` (its default), a folder, or a GGUF file"
    )
    parser.add_argument("--user", metavar="NAME", help="for whom: local (the default), or an account's name")
    parser.add_argument("--backend", choices=get_args(Backend), help="what computes it")
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database")


# The flags of import, export, backup and forget.


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


# The flags of `hierchat serve-vllm`.


def add_serve_vllm(commands: Any) -> None:
    """The flags."""
    parser = commands.add_parser(
        "serve-vllm", help="the chat over vLLM, which is installed and started for it (docs/serving.md)"
    )
    parser.add_argument(
        "served", metavar="MODEL", help="a name from `models list`, a folder, or OWNER/NAME on the hub"
    )
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share the model (1)"
    )
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="a Python that has vLLM; none is installed then"
    )
    parser.add_argument(
        "--vllm", default="", metavar="ARGUMENTS", help="further arguments of vLLM, in quotes"
    )
    parser.add_argument("--no-drafts", action="store_true", help="vLLM alone, without our drafter")
    add_page_flags(parser)


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
