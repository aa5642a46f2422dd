"""Deleted text is in the memory of no process, but for freed fragments that cannot be overwritten from outside."""

import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from hierchat.chat.conversations import UNDO_SECONDS
from hierchat.chat.deleted_texts import OVERWRITE_SECONDS
from hierchat.checks.memory import pieces_of
from tests.end_to_end.program import Program
from tests.isolation.visitor import Visitor
from tests.testing.raw import ask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux's /proc"),
]
WORDS = ["Quxolarimdet", "Кваксолуримдет"]
"""One that Python holds in a byte a character, and one of two."""
QUESTION = "Repeat this sentence three times, exactly: The {} sings to the {} at noon.".format(*WORDS)
WAIT_SECONDS = 240.0
FEW = 10


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    flags = ["--auth"] if request.param == "guest" else []
    running = Program(tmp_path, [sys.executable, "app.py", *flags], environment=os.environ)
    running.start()
    yield running
    running.stop(signal.SIGKILL)


def forms(word: str) -> dict[bytes, str]:
    """A word as UTF-8, as Python holds it (UCS-2 and UCS-4 are UTF-16 and UTF-32), and as JSON escapes it."""
    found = {word.encode(name): name for name in ("utf-32-le", "utf-16-le", "utf-8")}
    return {json.dumps(word)[1:-1].encode(): "json"} | found


def copies(program: Program) -> dict[str, int]:
    """Process, word and form -> how often the memory of the server or of a child of it holds that."""
    server, found = psutil.Process(program.process.pid), Counter[str]()
    for process in (server, *server.children(recursive=True)):
        ended = () if process is server else (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError)
        with suppress(*ended):
            name = "server" if process is server else " ".join(process.cmdline()[-2:])
            for data in pieces_of(process.pid):
                for word in WORDS:
                    found.update(
                        {f"{name}: {word} as {kind}": data.count(form) for form, kind in forms(word).items()}
                    )
    return dict(+found)


def in_file(program: Program) -> int:
    with closing(sqlite3.connect(f"file:{program.database}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM messages").fetchone()[0])


@pytest.mark.parametrize(
    ("program", "how"), [(how, how) for how in ("chat", "incognito", "guest")], indirect=["program"]
)
def test_deleted_text_leaves_the_memory(program: Program, how: str) -> None:
    """The template process holds nothing of it. Of the server's copies at most a tenth stays, or FEW, in freed memory:
    small pieces that a thread keeps for its next allocations, which another thread cannot reach."""
    if how == "guest":
        found = re.search(r"password (\S+) \(shown", program.log.read_text())
        page = Visitor(program.address, "guest", found[1])
    else:
        page = Visitor(program.address)
    page.open()
    if how == "incognito":
        page.act("hc_incognito", {})
    page.act("hc_example", {"text": QUESTION})
    with closing(sqlite3.connect(f"file:{program.database}?mode=ro", uri=True)) as db:
        (chat,) = db.execute("SELECT id FROM conversations").fetchone()
        (reply,) = db.execute("SELECT max(id) FROM messages").fetchone()
    page.act("hc_sources", {"id": reply})
    before = copies(program)
    assert sum(before.values()) > 20
    # The switch to incognito clears what was read ahead, and ends the process that renders templates
    assert how == "incognito" or any("template_program" in where for where in before)
    if how == "chat":
        page.act("hc_delete", {"id": chat})
        time.sleep(UNDO_SECONDS)
    elif how == "incognito":
        page.act("hc_go", {"id": 0})
    else:
        assert ask(program.address, "POST", "/logout", page.headers).status == 303
    give_up = time.monotonic() + WAIT_SECONDS
    while in_file(program):
        assert time.monotonic() < give_up
        time.sleep(0.2)
    after, most = copies(program), max(sum(before.values()) / 10, FEW)
    while sum(after.values()) > most and time.monotonic() < give_up:
        time.sleep(OVERWRITE_SECONDS)
        after = copies(program)
    assert not any("template_program" in where for where in after), after
    assert sum(after.values()) <= most, (before, after)
