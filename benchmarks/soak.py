"""Measure what a server holds after many visits: several people and programs come, ask, and go, again and again.

The program runs as a user would start it, in a process and with data of its own. Whoever comes logs in, opens the page
by Gradio's own protocol, chats, searches, compares, looks at every view, deletes the chat and logs out, or vanishes in
the middle of a reply. Nothing that they did is there afterwards, so nothing of it may stay in memory. A visit of a
person who reads takes a quarter of an hour: those of eight users in four hours fit into some twenty minutes here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks.page.tab import PATIENCE_SECONDS, Tab
from hierchat.access.login_sessions import hashed
from hierchat.checks.runs import RequestError, say
from hierchat.store import Store

TOKENS = 24
"""Of a reply: what is measured is visits."""
ROUND_SECONDS, REST_SECONDS = 30, 5
LEAST_SAMPLES = 4
SAME = "Word for word the same"
"""What the page says of the two sides of a comparison, plain and drafted."""
WITHIN = 0.05
"""Share by which memory may grow between the third and the last quarter."""
_PASSWORD = "soaking wet"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure memory and waits of a server over many visits. Raises RequestError."""
    with tempfile.TemporaryDirectory(prefix="hierchat-soak-", ignore_cleanup_errors=True) as folder:
        data = Path(folder)
        with Store.open(data / "hierchat.db") as store:
            for name in map(str, range(args.users - 1)):
                store.accounts.add(name, hashed(_PASSWORD))
            key = store.keys.add("soak")
        command = [sys.executable, "-m", "hierchat", "serve", "--auth", "--api", "--port", str(args.port)]
        command += ["--model", args.model] if args.model else []
        address = f"http://127.0.0.1:{args.port}"
        with psutil.Popen(command, env={**os.environ, "HIERCHAT_DATA": folder}, stdout=sys.stderr) as server:
            try:
                while not _answers(address):
                    if server.poll() is not None:
                        raise RequestError("hierchat did not start.")
                    time.sleep(1)
                return _soak(address, key, server, args.minutes * 60, args.users)
            finally:
                server.terminate()


def _answers(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{address}/health").is_success
    return False


def _soak(address: str, key: str, server: psutil.Process, seconds: float, users: int) -> dict[str, Any]:
    """Let people and a program visit, with a rest before each sample: memory of open visits says nothing."""
    resting, ended = threading.Barrier(users + 1), threading.Event()
    visits: Counter[str] = Counter()
    failed: list[Exception] = []
    waits: list[tuple[float, float]] = []  # when a reply came, and how long it took
    round_seconds = min(ROUND_SECONDS, seconds / LEAST_SAMPLES)

    def again(visit: Callable[[], Iterator[str]]) -> None:
        try:
            while not ended.is_set():
                due = time.monotonic() + round_seconds
                while time.monotonic() < due:
                    before = time.monotonic()
                    for done in visit():
                        visits[done] += 1
                        if done == "replies":
                            waits.append((time.monotonic() - began, time.monotonic() - before))
                        before = time.monotonic()
                resting.wait()
                resting.wait()
        except Exception as error:
            failed.append(error)
            resting.abort()

    people = [partial(_visits, address, str(name), count()) for name in range(users - 1)]
    began, samples = time.monotonic(), list[dict[str, int]]()
    for visit in (partial(_asks, address, key), *people):
        threading.Thread(target=again, args=[visit], daemon=True).start()
    try:
        while not ended.is_set():
            resting.wait()
            time.sleep(REST_SECONDS)
            passed = time.monotonic() - began
            samples.append({"seconds": round(passed), "visits": visits["visits"], **_held(server)})
            say(" ".join(f"{key} {value}" for key, value in samples[-1].items()))
            if passed >= seconds and len(samples) >= LEAST_SAMPLES:
                ended.set()
            resting.wait()
    except threading.BrokenBarrierError:
        raise RequestError(f"A visit failed: {failed[0]!r}") from failed[0]
    growth, latency = _growth(samples), _latency(waits)
    held = {
        "memory": growth["uss_mib"] <= WITHIN,
        "handles and threads": growth["handles"] <= 0 and growth["threads"] <= 0,
        "words": not visits["differ"],
    }
    return {"done": dict(visits), "latency": latency, "growth": growth, "held": held, "samples": samples}


def _latency(waits: list[tuple[float, float]]) -> dict[str, float]:
    """Return how long replies took in the first minute and in the last one, as medians of seconds."""
    end = max(at for at, _ in waits)
    minute = min(60.0, end / 2)
    first, last = (
        [took for at, took in waits if low <= at <= high] for low, high in ((0, minute), (end - minute, end))
    )
    return {"first": round(median(first), 3), "last": round(median(last), 3)}


def _held(server: psutil.Process) -> dict[str, int]:
    memory = server.memory_full_info()
    held = {"rss_mib": memory.rss >> 20, "uss_mib": memory.uss >> 20}
    return {**held, "handles": server.num_fds(), "threads": server.num_threads()}


def _growth(samples: list[dict[str, int]]) -> dict[str, float]:
    """Return how the median of the last quarter differs from that of the third, as a share."""
    quarter = len(samples) // 4
    third, last = (
        {key: median(one[key] for one in part) for key in part[0]}
        for part in (samples[-2 * quarter : -quarter], samples[-quarter:])
    )
    return {key: round(last[key] / third[key] - 1, 3) for key in last if key not in ("seconds", "visits")}


def _asks(address: str, key: str) -> Iterator[str]:
    """Do one round of a program: with and without a stream, and one that it hangs up."""
    asked = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": TOKENS}
    with httpx.Client(base_url=address, headers={"x-api-key": key}, timeout=PATIENCE_SECONDS) as program:
        program.get("/v1/models").raise_for_status()
        program.post("/v1/chat/completions", json=asked).raise_for_status()
        yield "replies"
        for lines in (None, 2):
            with program.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as answer:
                for _ in islice(answer.iter_lines(), lines):
                    pass
            yield "hung up" if lines else "replies"


def _visits(address: str, name: str, number: Iterator[int]) -> Iterator[str]:
    """Do one visit of a person, from login to logout. Every third one vanishes in the middle of a reply."""
    page, vanishes = Tab(address, (name, _PASSWORD), TOKENS), next(number) % 3 == 2
    yield "visits"
    for question in ("What is a list in Python?", "And a tuple?"):
        page.send(question)
        yield "replies"
    chat = page.chat
    for words in ("tuple", ""):
        page.fire("hc-search", "change", words)
        yield "searches"
    for view in ("models", "insights", "settings"):
        page.fire("hc-bus", "hc_panel", text=view)
        yield "views"
    page.fire("hc-bus", "hc_open", id=chat)
    page.fire("hc-compare", "change", True)
    page.send("Count to ten.")
    if not (same := any(SAME in part for part in page.shows.values())):
        say(f"The two sides of a comparison are not the same. The page shows: {page.words()}")
    yield "same" if same else "differ"
    page.fire("hc-compare", "change", False)
    if vanishes:
        page.send("Tell me a story.", waits=False)
        page.leave()
        page = Tab(address, (name, _PASSWORD), TOKENS)
        yield "vanished"
    page.fire("hc-bus", "hc_delete", id=chat)
    page.leave(logout=True)
    yield "log-outs"
