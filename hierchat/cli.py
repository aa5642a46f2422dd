"""The command line: python -m hierchat models | bench | verify."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hierchat.bench.arguments import add_bench, add_verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    args = _parser().parse_args(arguments)
    if args.command == "models":
        from hierchat.models.commands import get_model, list_models

        return list_models() if args.action == "list" else get_model(args.name)
    if args.command == "bench" and args.kind == "session":
        from hierchat.bench import session

        return session.run(
            args.questions, args.model, args.turns, args.max_new_tokens, args.temperature, args.json
        )
    from hierchat.bench.commands import run

    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hierchat", description="A private chat that drafts from your history.")
    commands = parser.add_subparsers(dest="command", required=True)

    models = commands.add_parser("models", help="what can answer, and what is on this machine")
    actions = models.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="the catalogue")
    get = actions.add_parser("get", help="fetch a model now")
    get.add_argument("name", metavar="NAME")

    add_bench(commands)
    add_verify(commands)
    return parser
