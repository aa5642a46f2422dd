"""The command line: hierchat [serve] | chat | models | corpus | learn | keys | users | stats | import | export | ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hierchat import logs, shutdown
from hierchat.checks.arguments import add_verify
from hierchat.cli.arguments import (
    add_chat,
    add_doctor,
    add_keys,
    add_learn,
    add_serve_vllm,
    add_transfer,
    add_users,
)
from hierchat.cli.serve import add_serve, serve
from hierchat.config import data_dir, require_folders

_SERVICES = ("serve", "serve-vllm")


_GONE = {
    "bench": "measurements moved out of the program. In a clone: `python -m benchmarks` with the same words behind it.",
    "distil": "is gone: drafts from a distilled model did not pay (docs/log.md). Its folders still draft.",
}
"""Commands of earlier versions, and what to do instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default the chat; returns its exit code."""
    words = _with_command(sys.argv[1:] if arguments is None else arguments)
    for gone, instead in _GONE.items():
        if gone in words[:2]:
            print(f"hierchat {gone}: {instead}", file=sys.stderr)
            return 2
    args = _parser().parse_args(words)
    logs.set_up(args.verbose)
    try:
        with shutdown.in_order():
            require_folders()
            if _says_model_here(args):
                args.model = _chosen(args.model)
            return _run(args)
    except KeyboardInterrupt:
        return 130
    except shutdown.Ended:
        if args.command in _SERVICES:
            return 0  # until it is told to end: that was all it had to do
        raise
    except Exception as error:
        print(f"hierchat: {logs.error_message(error, here=True)}", file=sys.stderr)
        return 1


def _with_command(arguments: Sequence[str]) -> list[str]:
    """`serve` where no command is named."""
    before = 1 if list(arguments[:1]) == ["--verbose"] else 0
    first = next(iter(arguments[before:]), "--")
    implied = ["serve"] if first.startswith("-") and first not in ("-h", "--help") else []
    return [*arguments[:before], *implied, *arguments[before:]]


def _says_model_here(args: argparse.Namespace) -> bool:
    """Whether --model is of this program, not of a server or of vLLM."""
    elsewhere = getattr(args, "url", None)
    return bool(getattr(args, "model", None)) and not elsewhere


def _chosen(said: str) -> str:
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.add import chosen

    return chosen(said, read_catalogue())


def _run(args: argparse.Namespace) -> int:
    if args.command == "serve":
        return serve(args)
    if args.command == "serve-vllm":
        from hierchat.cli.serve_vllm import run as serve_vllm

        return serve_vllm(args)
    if args.command == "chat":
        from hierchat.cli.chat import run as chat

        return chat(args)
    if args.command == "learn":
        from hierchat.cli.learn import run as learn

        return learn(args)
    if args.command == "models":
        from hierchat.cli.model_commands import check_models, get_model, list_models, search_models

        if args.action == "search":
            return search_models(args.words)
        if args.action == "check":
            return check_models(args.names)
        return list_models() if args.action == "list" else get_model(args.name)
    if args.command == "corpus":
        from hierchat.cli import corpus

        if args.action == "list":
            return corpus.list_corpora()
        if args.action == "remove":
            return corpus.remove_corpus(args.name)
        return corpus.add_corpus(args.paths, args.model, args.name, args.replace)
    if args.command == "stats":
        from hierchat.cli.stats import show_stats

        return show_stats(args.db, args.days)
    if args.command in ("import", "export", "backup", "forget"):
        from hierchat.cli import transfer as transfer

        return transfer.run(args)
    if args.command == "users":
        from hierchat.cli.accounts import run as users

        return users(args)
    if args.command == "keys":
        from hierchat.cli.accounts import run_keys as keys

        return keys(args)
    if args.command == "doctor":
        from hierchat.cli.checks import run_doctor as doctor

        return doctor(args)
    from hierchat.cli.checks import run as verify

    return verify(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hierchat",
        description="A private chat that drafts from your history. Without a command it starts the chat.",
        epilog="`hierchat COMMAND --help` shows what a command takes; `hierchat serve --help` is about the chat.",
    )
    parser.add_argument("--verbose", action="store_true", help="say more in the terminal")
    commands = parser.add_subparsers(dest="command", required=True)
    add_serve(commands)
    add_serve_vllm(commands)
    add_chat(commands)

    models = commands.add_parser("models", help="what can answer, and what is on this machine")
    actions = models.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="the catalogue")
    get = actions.add_parser("get", help="fetch a model now")
    get.add_argument("name", metavar="NAME")
    check = actions.add_parser("check", help="compare the catalogue with the hub")
    check.add_argument("names", metavar="NAME", nargs="*", help="by default, all that come from there")

    searched = actions.add_parser("search", help="look for models on the hub, which is sent the words")
    searched.add_argument("words", metavar="WORDS", nargs="+", help="of the model's name")

    corpus = commands.add_parser("corpus", help="texts that draft, beside what the model has written")
    actions = corpus.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="what is stored, and for which models")
    remove = actions.add_parser("remove", help="delete a corpus, for all models")
    remove.add_argument("name", metavar="NAME")
    add = actions.add_parser("add", help="files and folders of text, Markdown, code, JSON lines, chats")
    add.add_argument("paths", nargs="+", metavar="PATH", help="a file, a folder, or hub:OWNER/DATASET")
    add.add_argument(
        "--model", metavar="NAME", help="a name from `models list`: whose tokens (the default's)"
    )
    add.add_argument("--name", metavar="NAME", help="by default, as the first path is called")
    add.add_argument("--replace", action="store_true", help="in place of the corpus of this name")

    stats = commands.add_parser("stats", help="how drafting has fared from day to day")
    stats.add_argument("--db", type=Path, default=data_dir() / "hierchat.db", help="the database file")
    stats.add_argument("--days", type=int, default=30, metavar="N", help="today and the days before it")

    add_learn(commands)
    add_keys(commands)
    add_transfer(commands)
    add_users(commands)
    add_doctor(commands)
    add_verify(commands)
    return parser
