"""A day of use in a network without any route: prints, as JSON, what was done and how many packets found no way out."""

import fcntl
import json
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hierchat.checks.proofs import leave_network, packets_without_route
from tests.end_to_end.program import ROOT, Program
from tests.isolation.visitor import Visitor
from tests.testing.raw import ask_endpoint

PANELS = ("models", "documents", "insights", "settings")
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
"""SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP of Linux."""


def start_loopback() -> None:
    """A new network has its loopback interface down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        name = b"lo".ljust(16, b"\0")
        (flags,) = struct.unpack_from("h", fcntl.ioctl(one, _GET_FLAGS, name.ljust(40, b"\0")), 16)
        fcntl.ioctl(one, _SET_FLAGS, name + struct.pack("h22x", flags | _UP))


def commands(folder: Path, database: Path) -> list[str]:
    """Run commands that work without a network; the names of those that succeeded."""
    done = []
    for name, arguments in {
        "export": [folder / "out.json"],
        "backup": [folder / "copy.db"],
        "import": [folder / "out.json"],
    }.items():
        command = [sys.executable, "-m", "hierchat", name, *map(str, arguments), "--db", str(database)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (name, ran.stdout, ran.stderr)
        done.append(name)
    return done


def use(program: Program) -> list[str]:
    """Chat in the page and over both protocols, and look at each panel; what was done."""
    page, done = Visitor(program.address), list[str]()
    page.open()
    page.act("hc_example", {"text": "What is the capital of France?"})
    with closing(sqlite3.connect(f"file:{program.database}?mode=ro", uri=True)) as db:
        (text,) = db.execute("SELECT text FROM messages WHERE role = 'assistant' ORDER BY id DESC").fetchone()
    assert text
    done.append("chat")
    for panel in PANELS:
        page.act("hc_panel", {"text": panel})
        done.append(panel)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    for path, key in (("/v1/chat/completions", "choices"), ("/v1/messages", "content")):
        answer = ask_endpoint(program.address, "POST", path, body | {"model": "smollm2-135m"})
        assert answer.status == 200, answer.text
        assert answer.json[key]
        done.append(path)
    return done


def main(folder: Path) -> None:
    if not leave_network():
        print(json.dumps({"left": False}))
        return
    start_loopback()
    program = Program(folder, [sys.executable, "app.py", "--api-open"])
    try:
        program.start()
        done = use(program)
    finally:
        program.stop(signal.SIGTERM)
    done += commands(folder, program.database)
    packets = packets_without_route()
    with (
        suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
    ):  # the count would see one
        one.sendto(b"x", ("203.0.113.7", 9))
    seen = packets_without_route() - packets
    print(json.dumps({"left": True, "done": done, "packets": packets, "seen": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
