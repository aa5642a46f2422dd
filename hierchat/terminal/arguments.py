"""The flags of `hierchat chat` and `hierchat learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from hierchat.models.catalogue import Backend
from hierchat.terminal import values


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
    parser.add_argument(
        "--temperature", type=values.temperature, metavar="N", help="0 takes the likeliest token"
    )
    parser.add_argument("--seed", type=values.seed, metavar="N", help="same seed, same words")
    parser.add_argument("--max-new-tokens", type=values.tokens, metavar="N", help="the longest reply")
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
    parser.add_argument("--minutes", type=values.minutes, default=10.0, metavar="N", help="how long (10)")
    parser.add_argument(
        "--model", metavar="MODEL", help="a name from `models list` (its default), a folder, or a GGUF file"
    )
    parser.add_argument("--user", metavar="NAME", help="for whom: local (the default), or an account's name")
    parser.add_argument("--backend", choices=get_args(Backend), help="what computes it")
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database")
