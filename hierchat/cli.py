"""The command line: python -m hierchat models | bench."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    args = _parser().parse_args(arguments)
    if args.command == "models":
        from hierchat.models.commands import get_model, list_models

        return list_models() if args.action == "list" else get_model(args.name)
    from hierchat.bench import session

    return session.run(
        args.questions, args.model, args.turns, args.max_new_tokens, args.temperature, args.json
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hierchat", description="A private chat that drafts from your history.")
    commands = parser.add_subparsers(dest="command", required=True)

    models = commands.add_parser("models", help="what can answer, and what is on this machine")
    actions = models.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="the catalogue")
    get = actions.add_parser("get", help="fetch a model now")
    get.add_argument("name", metavar="NAME")

    bench = commands.add_parser("bench", help="measure on this machine")
    kinds = bench.add_subparsers(dest="kind", required=True)
    talk = kinds.add_parser(
        "session", help="one conversation of several turns: start, memory, speed, restart"
    )
    talk.add_argument(
        "--questions", type=Path, help="JSON lines with `turns`; by default ten built-in questions"
    )
    talk.add_argument("--model", help="a name from `models list`")
    talk.add_argument("--turns", type=int, default=10)
    talk.add_argument("--max-new-tokens", type=int, default=128)
    talk.add_argument("--temperature", type=float, default=0.0)
    talk.add_argument("--json", type=Path, help="write the figures here")
    return parser
