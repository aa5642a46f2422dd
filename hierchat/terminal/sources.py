"""Where the words of a reply came from, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from hierchat.chat.origins import Run
from hierchat.chat.words import in_order, percent, source_words
from hierchat.engine.step import TARGET
from hierchat.terminal.screen import printable

_STYLES = {
    TARGET: "",
    "context": "blue underline",
    "history": "yellow underline",
    "statistics": "green underline",
}
_DRAFT_MODEL = "magenta underline"


def show_sources(runs: Sequence[Run], console: Console) -> None:
    """The reply with its words marked, and below it what the marks mean, with the chats that held them."""
    reply = Text()
    for run in runs:
        reply.append(printable(run.text), _style(run.source))
    console.print(reply)
    console.print()
    whole = sum(run.tokens for run in runs)
    for source in in_order(run.source for run in runs):
        of_it = [run for run in runs if run.source == source]
        share = percent(sum(run.tokens for run in of_it) / whole)
        console.print(Text.assemble((source_words(source), _style(source)), f"  {share}{_where(of_it)}"))


def _style(source: str) -> str:
    return _STYLES.get(source, _DRAFT_MODEL)


def _where(runs: Sequence[Run]) -> str:
    """The chats and files in which they stand, in the order of the reply."""
    names = [
        f"“{printable(run.there.title)}”" if run.there and run.source != "context" else run.origin.corpus
        for run in runs
    ]
    names = list(dict.fromkeys(name for name in names if name))
    return f": {', '.join(names)}" if names else ""
