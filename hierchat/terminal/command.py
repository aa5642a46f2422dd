"""`hierchat chat`. Returns the process's exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from hierchat.attachments.reading import MOST_BYTES, read
from hierchat.store import Attachment
from hierchat.terminal.answering import answer
from hierchat.terminal.door import opened
from hierchat.terminal.errors import TerminalError
from hierchat.terminal.figures import figures_line, record
from hierchat.terminal.interactive import Interactive
from hierchat.terminal.lines import Lines
from hierchat.terminal.screen import Nothing, Plain, Rendered, Screen, console, say
from hierchat.terminal.talk import Talk

INTERRUPTED, BROKEN_PIPE = 130, 141
"""As a shell counts a program that a signal ended."""
_EARLIER = 100
"""Earlier messages that can be taken up again."""


def run(args: argparse.Namespace) -> int:
    """One answer, or a chat until the user leaves."""
    text, files = _asked(" ".join(args.message))
    if not text and not files and args.json:
        raise TerminalError("--json is for one answer. Give a message, or pipe one in.")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what the terminal cannot show
    try:
        with opened(args) as talk:
            if text or files:
                return _one(talk, text, files, args)
            return _many(talk, args)
    except BrokenPipeError:
        # Who reads has gone. Python would say so once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _asked(message: str) -> tuple[str, Sequence[Attachment]]:
    """The message, and what was piped in: that is the message where there is none, and else goes with it as a file.

    Raises Unreadable, TerminalError where something was piped in and nothing came.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        return message, ()
    raw = sys.stdin.buffer.read(MOST_BYTES + 1) if sys.stdin is not None else b""
    if not raw.strip():
        if not message.strip():
            raise TerminalError(
                "Nothing was asked: standard input is empty. Give a message behind `hierchat chat`."
            )
        return message, ()
    piped = read("stdin", raw)
    return (message, (piped,)) if message.strip() else (piped.text.strip(), ())


def _one(talk: Talk, text: str, files: Sequence[Attachment], args: argparse.Namespace) -> int:
    notes = console(notes=True, plain=args.plain)
    last = answer(talk, text, files, Nothing() if args.json else _screen(talk, args.plain))
    if last.phase == "waiting":
        return INTERRUPTED
    if args.json:
        print(json.dumps(record(last, talk.model.name, talk.number), ensure_ascii=False))
    else:
        for sentence in (last.notice, figures_line(last.figures)):
            if sentence:
                say(notes, sentence)
    return {"stopped": INTERRUPTED, "error": 1}.get(last.finish or "", 0)


def _many(talk: Talk, args: argparse.Namespace) -> int:
    notes = console(notes=True, plain=args.plain)
    chat = talk.chat()
    about = f" · going on with “{chat.title}”" if chat else " · nothing is stored" if args.no_history else ""
    say(
        notes,
        f"{talk.model.name}{talk.model.place}{about} · /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves",
    )
    loop = Interactive(talk, _screen(talk, args.plain), console(plain=args.plain), notes)
    loop.run(Lines(talk.earlier(_EARLIER), loop.completions))
    return 0


def _screen(talk: Talk, plain: bool) -> Screen:
    out = console()
    if plain or not out.is_terminal or out.is_dumb_terminal:
        return Plain(sys.stdout, talk.settings.sampling.get("stop") or ())
    return Rendered(out)
