"""Run `hierchat serve` with a thread beside it that asks the first question and notes when each thing was there.

Run by start.py in a process of its own; ends the process once the first reply has begun.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

HEAVY = (
    "torch", "transformers", "bitsandbytes", "accelerate", "triton", "pandas", "matplotlib", "scipy", "sklearn",
    "pyarrow", "PIL",
)  # fmt: skip
"""Packages whose import takes long, and which a chat on the CPU engine does without."""
QUESTION = "Hello! What can you do?"
LOOK = 0.05
"""Seconds between two looks at what the program has."""


def main() -> None:
    """Run `start_inside REPORT [flags of serve]`, with the time of the start in HIERCHAT_START."""
    report, flags = Path(sys.argv[1]), sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threading.Thread(target=_watch, args=(port, report), daemon=True).start()
    sys.argv = ["hierchat", "serve", "--port", str(port), *flags]
    runpy.run_module("hierchat", run_name="__main__")


def _watch(port: int, report: Path) -> None:
    began = float(os.environ["HIERCHAT_START"])
    found: dict[str, Any] = {}

    def note(what: str) -> None:
        found[f"{what}_s"] = round(time.time() - began, 2)
        found[f"{what}_cpu_s"] = round(_processor_seconds(), 2)

    try:
        _wait(lambda: _answers(port))
        note("page")
        service = _service()
        _wait(lambda: service.slot.status.phase in ("ready", "failed"))
        note("ready")
        found |= {"ready_mib": _resident(), **_imported()}
        _ask(service)
        note("first_token")
        found |= {"first_token_mib": _resident(), "heavy_after_reply": _imported()["heavy"]}
        part = report.with_suffix(".part")
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(report)
    finally:
        os._exit(0)


def _wait(condition: Any) -> None:
    while not condition():
        time.sleep(LOOK)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            return bool(page.read())
    except OSError:
        return False


def _service() -> Any:
    """Return the ChatService on which the page stands."""
    from hierchat.chat.service import ChatService

    return next(one for one in gc.get_objects() if isinstance(one, ChatService))


def _ask(service: Any) -> None:
    """Send the first message of a new user, and wait for the first token of the reply."""
    from hierchat.chat.in_progress import NewQuestion

    user = service.store.users.ensure("bench")
    chat = service.store.chats.create(user)
    settings = service.slot.settings(service.slot.status.name)
    for frame in service.send(user, NewQuestion(chat, None, QUESTION), settings, threading.Event()):
        if frame.text or frame.phase == "done":
            if frame.notice:
                raise RuntimeError(frame.notice)
            return


def _processor_seconds() -> float:
    """Return the processor seconds of this process and its children, those that have ended included: says more than the
    clock where the machine is shared."""
    import psutil

    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:4])
    return total


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss // 2**20)


def _imported() -> dict[str, Any]:
    names = list(sys.modules)
    return {"modules": len(names), "heavy": [name for name in HEAVY if name in names]}


if __name__ == "__main__":
    main()
