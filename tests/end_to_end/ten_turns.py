"""python -m tests.end_to_end.ten_turns: a conversation of ten turns in a real browser, by the page's own figures.

Prints JSON: seconds until a second start is ready to chat, memory of the running program, figures of each reply as
the page shows them, and whether the conversation is there after a restart. A measurement, not a test.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from benchmarks.session import CONVERSATION
from hierchat.checks.runs import machine
from tests.end_to_end.program import REPLY_MS, ROOT, Program
from tests.testing import browser as driving


def measure(folder: Path) -> dict[str, object]:
    program = Program(folder)
    program.start()  # the first may fetch and convert
    program.stop()
    began = time.perf_counter()
    program.start()
    ready = time.perf_counter() - began
    try:
        with driving.browser() as browser, driving.visiting(browser, program.address) as chat:
            chat.page.set_default_timeout(REPLY_MS)
            chat.open()
            feet = []
            for number, question in enumerate(CONVERSATION, 1):
                chat.ask(question, REPLY_MS)
                feet.append(" ".join(chat.replies.last.inner_text().split()))
                if number == 3:
                    chat.shot("readme")
            chat.shot("ten-turns")
            assert program.process is not None
            memory = psutil.Process(program.process.pid).memory_info().rss
            program.stop(signal.SIGTERM)
            program.start()
            chat.open()
            chat.page.locator("#hc-list nav").get_by_text(CONVERSATION[0][:20]).first.click()
            chat.page.wait_for_function("document.querySelectorAll('#hc-chat .hc-foot').length >= 10")
            after = chat.replies.count()
    finally:
        program.stop(signal.SIGKILL)
    speedups = [float(found[1]) for foot in feet if (found := re.search(r"([\d.]+)×", foot))]  # noqa: RUF001
    return {
        "machine": machine(),
        "second_start_seconds": round(ready, 1),
        "memory_mib": memory // 2**20,
        "replies": feet,
        "median_speedup": median(speedups) if speedups else None,
        "replies_after_restart": after,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(Path(place)), indent=2, ensure_ascii=False))
    print(f"Screenshots: {(ROOT / 'tests' / 'screenshots').relative_to(ROOT)}/readme.png, ten-turns.png")
