"""The command line: hierchat [serve] | chat | models | corpus | learn | keys | users | stats | import | export | ..."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hierchat import ending, logs
from hierchat.accounts.arguments import add_users
from hierchat.bench.arguments import add_bench
from hierchat.config import data_dir, require_folders
from hierchat.distil.command import add_distil
from hierchat.doctor.command import add_doctor
from hierchat.doctor.command import run as doctor
from hierchat.serve import add_serve, serve
from hierchat.serve_vllm.arguments import add_serve_vllm
from hierchat.server.arguments import add_keys
from hierchat.terminal.arguments import add_chat, add_learn
from hierchat.transfer.arguments import add_transfer
from hierchat.verify.arguments import add_verify

_SERVICES = ("serve", "serve-vllm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default the chat; returns its exit code."""
    args = _parser().parse_args(_with_command(sys.argv[1:] if arguments is None else arguments))
    logs.set_up(args.verbose)
    try:
        with ending.in_order():
            require_folders()
            if _says_model_here(args):
                args.model = _chosen(args.model)
            return _run(args)
    except KeyboardInterrupt:
        return 130
    except ending.Ended:
        if args.command in _SERVICES:
            return 0  # until it is told to end: that was all it had to do
        raise
    except Exception as error:
        print(f"hierchat: {logs.said(error, here=True)}", file=sys.stderr)
        return 1


def _with_command(arguments: Sequence[str]) -> list[str]:
    """`serve` where no command is named."""
    before = 1 if list(arguments[:1]) == ["--verbose"] else 0
    first = next(iter(arguments[before:]), "--")
    implied = ["serve"] if first.startswith("-") and first not in ("-h", "--help") else []
    return [*arguments[:before], *implied, *arguments[before:]]


def _says_model_here(args: argparse.Namespace) -> bool:
    """Whether --model is of this program, not of a server or of vLLM."""
    elsewhere = getattr(args, "url", None) or getattr(args, "kind", None) == "vllm"
    return bool(getattr(args, "model", None)) and not elsewhere


def _chosen(said: str) -> str:
    from hierchat.models.catalogue import read_catalogue
    from hierchat.models.load.add import chosen

    return chosen(said, read_catalogue())


def _run(args: argparse.Namespace) -> int:
    if args.command == "serve":
        return serve(args)
    if args.command == "serve-vllm":
        from hierchat.serve_vllm.command import run as serve_vllm

        return serve_vllm(args)
    if args.command == "chat":
        from hierchat.terminal.command import run as chat

        return chat(args)
    if args.command == "learn":
        from hierchat.terminal.learning import run as learn

        return learn(args)
    if args.command == "models":
        from hierchat.models.commands import check_models, get_model, list_models, search_models

        if args.action == "search":
            return search_models(args.words)
        if args.action == "check":
            return check_models(args.names)
        return list_models() if args.action == "list" else get_model(args.name)
    if args.command == "corpus":
        from hierchat.corpus import commands as corpus

        if args.action == "list":
            return corpus.list_corpora()
        if args.action == "remove":
            return corpus.remove_corpus(args.name)
        return corpus.add_corpus(args.paths, args.model, args.name, args.replace)
    if args.command == "stats":
        from hierchat.chat.commands import show_stats

        return show_stats(args.db, args.days)
    if args.command in ("import", "export", "backup", "forget"):
        from hierchat.transfer import commands as transfer

        return transfer.run(args)
    if args.command == "users":
        from hierchat.accounts.commands import run as users

        return users(args)
    if args.command == "keys":
        from hierchat.server.commands import run as keys

        return keys(args)
    if args.command == "doctor":
        return doctor(args)
    if args.command == "distil":
        from hierchat.distil.command import run as distil

        return distil(args)
    if args.command == "verify":
        from hierchat.verify.command import run as verify

        return verify(args)
    from hierchat.bench.commands import run

    return run(args)


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
    add_distil(commands)
    add_bench(commands)
    add_verify(commands)
    return parser
