"""Measure how long somebody at the page waits, and whether anything moves while a reply is written."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.page import scripted
from benchmarks.page.browser import browser
from benchmarks.page.scripted import loader
from hierchat.chat.service import ChatService
from hierchat.checks.runs import RequestError, machine, say
from hierchat.models.catalogue import read_catalogue
from hierchat.page.screen import DRAWN
from hierchat.runtime.model_slot import ModelSlot
from hierchat.store import LOCAL_USER, Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SEEN = Path(__file__).with_name("seen.js")
VIEWS = ("settings", "models")
WANTED = {
    "first_paint_ms": 250.0, "usable_ms": 1000.0, "click_ms": 100.0, "settings_ms": 100.0, "models_ms": 100.0,
    "open_ms": 200.0, "layout_shift": 0.0, "server_cores": 0.08, "browser_cores": 0.12,
}  # fmt: skip
"""At most."""
GIVE_UP_MS = 1_200_000.0
NEWEST = "() => [...document.querySelectorAll('#hc-thread .hc-foot')].at(-1)?.dataset.message ?? ''"
"""The last reply that stands in the thread; of a long chat the first ones go where another one comes."""
ALERTS = "#hc-live [role=alert], #hc-thread [role=alert]"
WRONG = f"document.querySelector('{ALERTS}')"
SHORT = 10
"""Messages of the chat that is opened between two long ones."""
WIDTH, HEIGHT = 1280, 800
BUSY_SECONDS, BUSY_PERCENT = 0.5, 10


def measure(args: argparse.Namespace) -> int:
    """Measure the page, print a table and write the figures. Raises RequestError."""
    busy = psutil.cpu_percent(BUSY_SECONDS)
    if busy > BUSY_PERCENT:
        say(f"Other programs use {busy:.0f} % of the cores: the figures will suffer.")
    with browser() as chromium, served(args.messages) as (address, slot, service):
        from playwright.sync_api import Error

        try:
            figures = {
                "opening": _opening(chromium, address, args.repeats),
                "clicks": _clicks(chromium, address, args.repeats),
                "chats": _chats(chromium, address, args.messages, args.repeats),
                "import": _import(chromium, address, args.megabytes),
            }
            if args.chats:
                scripted.add_chats(service.store, args.chats)
                figures["list"] = {"chats": args.chats}
                figures["list"] |= _opening(chromium, address, args.repeats)["again"]
                figures["list"] |= _clicks(chromium, address, args.repeats)
                # The long chat again, at the top of the list.
                scripted.add_chat(
                    service.store, service.store.users.ensure(LOCAL_USER), "Long", args.messages
                )
            slot.start(slot.names[0])
            figures["streaming"] = _streaming(chromium, address, args.messages)
        except Error as error:
            raise RequestError(f"The page did not do as expected.\n{error}") from error
        result = {
            "machine": machine(),
            "browser": f"Chromium {chromium.version}",
            "busy_percent": busy,
            "messages": args.messages,
            "repeats": args.repeats,
            "wanted": WANTED,
            **figures,
        }
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _show(figures, args.messages)
    return 0


@contextmanager
def served(messages: int) -> Iterator[tuple[str, ModelSlot, ChatService]]:
    """Serve the page over a store of its own, which holds a long and a short chat; yield its address, a slot that holds
    no model until it is told to, and the service."""
    from hierchat.access.files import files
    from hierchat.page.page_app import build_app, serve

    before = os.environ.get("HIERCHAT_DATA")
    with tempfile.TemporaryDirectory(prefix="hierchat-page-", ignore_cleanup_errors=True) as folder:
        os.environ["HIERCHAT_DATA"] = folder  # what is sent to the page is kept there
        database = Path(folder) / "hierchat.db"
        slot = ModelSlot(read_catalogue(), load=loader(scripted.LONG_REPLY))
        try:
            with Store.open(database) as store, closing(ChatService(store, slot)) as service:
                user = store.users.ensure(LOCAL_USER)
                scripted.add_chat(store, user, "Short", SHORT)
                scripted.add_chat(store, user, "Long", messages)
                app = build_app(service)
                address, _ = serve(app)
                try:
                    yield address, slot, service
                finally:
                    app.close(verbose=False)
        finally:
            files.close()
            if before is None:
                del os.environ["HIERCHAT_DATA"]
            else:
                os.environ["HIERCHAT_DATA"] = before


@contextmanager
def _visiting(chromium: Browser, address: str) -> Iterator[Page]:
    """Open the page as a new visitor, and yield it once it can be used."""
    context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(GIVE_UP_MS)
    context.add_init_script(path=SEEN)
    page = context.new_page()
    try:
        page.goto(address)
        page.evaluate("hcBench.opened()")
        yield page
    finally:
        context.close()


def _opening(chromium: Browser, address: str, repeats: int) -> dict[str, Any]:
    """Time the first visit of a browser that knows nothing of the page, and the next one."""
    found: dict[str, list[dict[str, float]]] = {"first": [], "again": []}
    for _ in range(repeats):
        with _visiting(chromium, address) as page:
            found["first"].append(page.evaluate("hcBench.opened()"))
            page.reload()
            found["again"].append(page.evaluate("hcBench.opened()"))
    return {
        visit: {key: _summary([one[key] for one in times]) for key in times[0]}
        for visit, times in found.items()
    }


def _chats(chromium: Browser, address: str, messages: int, repeats: int) -> dict[str, Any]:
    """Time opening a chat, from the click in the list until it is painted."""
    found: dict[str, list[float]] = {"long": [], "short": []}
    with _visiting(chromium, address) as page:
        for _ in range(repeats):
            found["long"].append(page.evaluate("hcBench.opensChat", ["Long", min(messages, DRAWN)]))
            found["short"].append(page.evaluate("hcBench.opensChat", ["Short", SHORT]))
    return {name: {"open_ms": _summary(times)} for name, times in found.items()}


def _clicks(chromium: Browser, address: str, repeats: int) -> dict[str, Any]:
    """Time a click on the link to a view until the page shows where it leads, and until the view stands."""
    clicks: list[float] = []
    drawn: dict[str, list[float]] = {view: [] for view in VIEWS}
    with _visiting(chromium, address) as page:
        for _ in range(repeats):
            for view, times in drawn.items():
                click, there = page.evaluate("hcBench.opensView", view)
                clicks.append(click)
                times.append(there)
    return {"click_ms": _summary(clicks), **{f"{view}_ms": _summary(times) for view, times in drawn.items()}}


def _import(chromium: Browser, address: str, megabytes: int) -> dict[str, Any]:
    """Time an import, from the choice of a file until the page says what came of it."""
    with tempfile.TemporaryDirectory(prefix="hierchat-page-") as folder:
        path = Path(folder) / "conversations.json"
        chats, messages = scripted.write_conversations(path, megabytes * 1_000_000)
        with _visiting(chromium, f"{address}?view=settings") as page:
            with page.expect_file_chooser() as chooser:
                page.get_by_role("button", name="Choose files").click()
            began = time.perf_counter()
            chooser.value.set_files(path)
            page.locator("#hc-transfer-state .hc-ended").wait_for()
            took = time.perf_counter() - began
            said = page.locator("#hc-transfer-state").inner_text()
    if not said.startswith(f"{chats:,} chat"):
        raise RequestError(f"{chats:,} chats should have come in, but the page says: {said}")
    return {"megabytes": megabytes, "chats": chats, "messages": messages, "seconds": round(took, 1)}


def _streaming(chromium: Browser, address: str, messages: int) -> dict[str, Any]:
    """Measure what moves by itself, how long the page is busy at a time, and how many cores server and browser take,
    while a reply is written: into an empty page, and at the end of the long chat."""
    found = {}
    for where in ("new", "long"):
        with _visiting(chromium, address) as page:
            if where == "long":
                page.evaluate("hcBench.opensChat", ["Long", min(messages, DRAWN)])
            before = page.evaluate(NEWEST)
            page.locator("#hc-box textarea").fill("Reverse a string")
            page.evaluate("hcBench.begin()")
            began, used = time.perf_counter(), _used()
            page.locator("#hc-box textarea").press("Enter")
            wrong = page.locator(ALERTS)
            # Looked for twice a second: what is looked for at each frame makes the browser draw sixty of them.
            sent = "document.querySelector('#hc-send').checkVisibility()"
            ended = f"before => {WRONG} || ({NEWEST})() !== before && {sent}"
            page.wait_for_function(ended, arg=before, polling=500)
            if wrong.count():
                raise RequestError(f"The reply was not written to its end: {wrong.first.inner_text()}")
            took = time.perf_counter() - began
            cores = {f"{name}_cores": (more - used[name]) / took for name, more in _used().items()}
            found[where] = {**page.evaluate("hcBench.since()"), "seconds": took, **cores}
    return found


def _used() -> dict[str, float]:
    """Return the processor seconds that this process, which serves the page, and the browser have used so far."""
    own = psutil.Process()
    browser = 0.0
    for process in own.children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            times = process.cpu_times()
            browser += times.user + times.system
    times = own.cpu_times()
    return {"server": times.user + times.system, "browser": browser}


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": round(median(times), 1), "most": round(max(times), 1)}


def _show(figures: dict[str, Any], messages: int) -> None:
    table = Table("", "median", "most", "wanted")

    def row(name: str, values: dict[str, float], key: str) -> None:
        wanted = f"{WANTED[key]:,.0f}" if key in WANTED else ""
        table.add_row(name, f"{values['median']:,.0f}", f"{values['most']:,.0f}", wanted)

    for visit in ("first", "again"):
        for key in ("first_paint_ms", "usable_ms"):
            name = key.removesuffix("_ms").replace("_", " ")
            row(f"{visit} visit: {name}, ms", figures["opening"][visit][key], key)
    row("a click on a view is answered, ms", figures["clicks"]["click_ms"], "click_ms")
    for view in VIEWS:
        row(f"{view.title()} is drawn, ms", figures["clicks"][f"{view}_ms"], f"{view}_ms")
    if listed := figures.get("list"):
        over = f"over {listed['chats']:,} chats"
        row(f"again visit {over}: usable, ms", listed["usable_ms"], "usable_ms")
        row(f"a click on a view is answered {over}, ms", listed["click_ms"], "click_ms")
        for view in VIEWS:
            row(f"{view.title()} is drawn {over}, ms", listed[f"{view}_ms"], f"{view}_ms")
    for name, count in (("long", messages), ("short", SHORT)):
        row(f"a chat of {count} messages opens, ms", figures["chats"][name]["open_ms"], "open_ms")
    came = figures["import"]
    table.add_row(
        f"{came['megabytes']} MB, {came['chats']:,} chats come in, s", f"{came['seconds']:,}", "", ""
    )
    for where, seen in figures["streaming"].items():
        table.add_row(f"layout shift, {where} chat", f"{seen['layout_shift']:.4f}", "", "0")
        table.add_row(f"longest task, {where} chat, ms", f"{seen['longest_task_ms']:,.0f}", "", "")
        for side in ("server", "browser"):
            wanted = WANTED.get(f"{side}_cores")
            cores = f"{seen[f'{side}_cores']:.2f}"
            table.add_row(f"cores of the {side}, {where} chat", cores, "", f"{wanted:.2f}" if wanted else "")
    Console().print(table)
