"""Plays a log of chats as two weeks of a user's history, and takes the picture of Insights over it.

Every reply is written by the model and measured as it is written, one after the other, in the order of the log. Only
their dates are moved afterwards: what the log calls its last day is today, and the others lie as many days before.

    python -m benchmarks.page.history --log FILE --model NAME --data FOLDER --picture docs/insights.png

It goes on where it was stopped: FOLDER holds the database, and which chats of the log are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.page.browser import browser
from benchmarks.page.measure import BUSY_PERCENT, BUSY_SECONDS, WIDTH
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.service import ChatService
from hierchat.chat.wording import against_plain
from hierchat.checks.runs import RequestError, say
from hierchat.config import GenerationSettings
from hierchat.models.catalogue import read_catalogue
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import LOCAL_USER, Store

HEIGHT = 860
DAY_SECONDS = 86_400


def main(arguments: list[str] | None = None) -> int:
    """Play what is missing of the log, then take the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page.history", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, metavar="FILE", help="JSON lines: id, day, turns")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="of its own; goes on there"
    )
    parser.add_argument("--picture", type=Path, metavar="PNG", help="where the picture of Insights goes")
    parser.add_argument("--per-day", type=int, default=8, metavar="N", help="chats of each day (8)")
    parser.add_argument("--days", type=int, default=14, metavar="N", help="the first days of the log (14)")
    parser.add_argument("--max-new-tokens", type=int, default=120, metavar="N", help="of a reply (120)")
    args = parser.parse_args(arguments)
    if (busy := psutil.cpu_percent(BUSY_SECONDS)) > BUSY_PERCENT:
        say(f"Other programs use {busy:.0f} % of the cores: the figures will suffer.")
    os.environ["HIERCHAT_DATA"] = str(args.data)  # what the page keeps beside its database
    args.data.mkdir(parents=True, exist_ok=True)
    with _service(args.data / "hierchat.db", args.model) as service:
        _play(service, args)
        if args.picture:
            _picture(service, args.picture)
    return 0


@contextmanager
def _service(database: Path, model: str) -> Iterator[ChatService]:
    """Serve this database with the model loaded. Raises RequestError."""
    with Store.open(database) as store, ExitStack() as ending:
        slot = ModelSlot(read_catalogue(), learned=store.learned)
        if model not in slot.names:
            raise RequestError(f"No model is called {model!r}. There are: {', '.join(slot.names)}.")
        service = ending.enter_context(closing(ChatService(store, slot)))
        slot.start(model)
        while slot.status.phase not in ("ready", "failed"):
            time.sleep(0.1)
        if slot.status.phase == "failed":
            raise RequestError(slot.status.message or f"{model} could not be loaded.")
        yield service


def _chats(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the chats of the log that are to be played, in its order."""
    taken: Counter[int] = Counter()
    for line in args.log.read_text(encoding="utf-8").splitlines():
        chat = json.loads(line)
        taken[chat["day"]] += 1
        if chat["day"] <= args.days and taken[chat["day"]] <= args.per_day:
            yield chat


def _play(service: ChatService, args: argparse.Namespace) -> None:
    notes = (
        args.data / "played.json"
    )  # chat of the log -> conversation, its last message, turns that are there
    played: dict[str, list[int]] = json.loads(notes.read_text()) if notes.exists() else {}
    store, chats = service.store, list(_chats(args))
    user, last = store.users.ensure(LOCAL_USER), max(chat["day"] for chat in chats)
    settings = GenerationSettings(max_new_tokens=args.max_new_tokens, temperature=0)
    for number, chat in enumerate(chats, start=1):
        if (key := str(chat["id"])) not in played:
            played[key] = [store.chats.create(user), 0, 0]
            notes.write_text(json.dumps(played))
        conversation, below, turns = played[key]
        for turn, text in enumerate(chat["turns"][turns:], start=turns + 1):
            question = NewQuestion(conversation, below or None, text)
            *_, frame = service.send(user, question, settings, threading.Event())
            if frame.finish == "error" or frame.message_id is None:
                raise RequestError(frame.notice or "A reply failed.")
            if turn == len(chat["turns"]):
                _move(store.path, conversation, last - chat["day"])
            below = frame.message_id
            played[key] = [conversation, below, turn]
            notes.write_text(json.dumps(played))
            speedup = frame.figures.deserved_speedup
            told = against_plain(speedup) if speedup else "not compared"
            say(f"day {chat['day']}, chat {number} of {len(chats)}: {frame.figures.tokens} tokens, {told}")


def _move(database: Path, conversation: int, days: int) -> None:
    """Move a chat to `days` days earlier; nothing else of it changes."""
    with closing(sqlite3.connect(database, timeout=30)) as db, db:
        before = {"seconds": days * DAY_SECONDS, "id": conversation}
        db.execute(
            "UPDATE messages SET created_at = created_at - :seconds WHERE conversation_id = :id", before
        )
        db.execute(
            "UPDATE conversations SET created_at = created_at - :seconds, updated_at = updated_at - :seconds "
            "WHERE id = :id",
            before,
        )


def _picture(service: ChatService, to: Path) -> None:
    """Take a picture of Insights, which shows the last 30 days."""
    from hierchat.page.page_app import build_app, serve

    app = build_app(service)
    address, _ = serve(app)
    try:
        with browser() as chromium:
            page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"{address}?view=insights")
            page.locator(".hc-tiles").wait_for()
            page.wait_for_timeout(2_000)  # until the charts are drawn
            page.screenshot(path=to)
    finally:
        app.close(verbose=False)
    say(f"{to} shows it.")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RequestError as error:
        sys.exit(str(error))
