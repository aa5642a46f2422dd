"""A hurried walk through the page in two tabs of one user, and what must be true of them whenever both rest."""

import random
import re
import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Error, Page

from benchmarks.page.scripted import WINDOW, Characters
from hierchat.chat.service import ChatService
from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from tests.testing.browser import PATIENCE_MS
from tests.testing.late import Late

SCRIPT = Path(__file__).with_name("races.js")
BETWEEN_MS = 250
"""Most time between two steps."""
LOOKS = 4
"""How often what differs at rest is looked at, a second apart: a page looks once a second for what woke it not."""
LOOK_MS = 100
"""Waits are counted, not timed: the machine may stop for a while."""
WEIGHTS = {
    "send": 16, "send_and_new": 8, "open": 16, "new": 6, "panel": 7, "back": 7, "forward": 7, "stop": 12, "delete": 4,
    "undo": 16, "rename": 8, "again": 24, "edit": 24, "type": 6,
}  # fmt: skip
"""How often each step is tried. One that is not possible then, such as Stop where nothing is written, is no step."""
WAITS = "(window.races?.waits() ?? 'not loaded')"
WORD = re.compile(r"\bw\d+\b")


class EchoEngine:
    """Writes quickly what it was asked, each time with another number."""

    context_length = WINDOW
    exact: bool | None = None
    backend = "scripted"
    places = 3

    def __init__(self, seed: int) -> None:
        self._numbers = random.Random(seed)
        self._lock = threading.Lock()
        self._written = 0

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        with self._lock:
            self._written += 1
            number, pause = self._written, self._numbers.choice((0.0, 0.01, 0.03, 0.1))
        asked = "".join(map(chr, request.prompt_ids)).rpartition("user: ")[2]
        tokens = tuple(map(ord, f"Reply {number} to {asked} " + "and so on " * 4))
        yield Step(prompt_read=len(request.prompt_ids), prompt_tokens=len(request.prompt_ids))
        for at in range(request.begun, len(tokens), 16):
            stopped, piece = request.stop.wait(pause), tokens[at : at + 16]
            finish: Any = "stopped" if stopped else "end" if at + 16 >= len(tokens) else None
            yield Step(piece, (TARGET,) * len(piece), width=1, forward_ms=1.0, finish=finish)
            if stopped:
                return


def served(seed: int) -> ServedModel:
    return ServedModel("echo", "echo", EchoEngine(seed), PromptBuilder(Characters(), WINDOW))


class WrongScreen(AssertionError):
    """Raised with what is wrong."""


@dataclass(eq=False)
class Tab:
    """A tab of the user, and where its visitor must be by the steps taken there."""

    name: str
    page: Page
    place: str = ""
    """A chat's id, "view NAME", or "new NUMBER" of a visit to the empty page."""
    visits: int = 0
    left: str = ""
    """The place that went with its chat, which was deleted here last; empty after a step to elsewhere."""

    def goes(self, place: str) -> None:
        self.left = ""
        if place == "new":
            self.visits += 1
            place = f"new {self.name}{self.visits}"
        self.place = place


@dataclass
class Word:
    """A word that was typed somewhere, which no other text holds."""

    tab: Tab
    place: str
    """Where it was typed, or sent."""
    sent: bool = False
    edited: bool = False
    """Whether it was sent from the editor: while a reply is written, it goes into the box."""


@dataclass
class Round:
    """What was done since all was compared last."""

    deleted: set[int] = field(default_factory=set)
    renamed: dict[int, dict[str, str]] = field(default_factory=dict)
    """Chat -> its last title by each tab."""


def place_of(search: str) -> str:
    chat, view = re.search(r"[?&]c=(\d+)", search), re.search(r"[?&]view=(\w+)", search)
    return f"view {view[1]}" if view else chat[1] if chat else "new"


class Walk:
    """Takes steps in the tabs, and judges what they show."""

    def __init__(
        self, seed: int, context: BrowserContext, address: str, service: ChatService, late: Late
    ) -> None:
        self._numbers = random.Random(seed)
        self._seed = seed
        self._context = context
        self._address = address
        self._service = service
        self._late = late
        self._taken: list[str] = []
        self._words: dict[str, Word] = {}
        self._gone: set[int] = set()
        """Chats that were deleted at some time."""
        self._count = 0
        self.tabs = [Tab(name, context.new_page()) for name in "AB"]
        for tab in self.tabs:
            tab.page.goto(address)

    def go(self, steps: int) -> Counter[str]:
        """Take so many steps, and compare every 10 to 25 of them; return how often each was taken."""
        done: Counter[str] = Counter()
        self._late.calm = True
        self._rest()
        self._noted()
        while (left := steps - done.total()) > 0:
            self._late.calm = False
            for _ in range(min(left, self._numbers.randint(10, 25))):
                done[self._step()] += 1
                self._pause()
            self._compare()
        return done

    def _pause(self) -> None:
        self.tabs[0].page.wait_for_timeout(self._numbers.uniform(0, BETWEEN_MS))

    def _step(self) -> str:
        """Take one step that is possible; return its name."""
        for _ in range(PATIENCE_MS // LOOK_MS):
            name = self._numbers.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            tab, share = self._numbers.choice(self.tabs), self._numbers.random()
            self._count += 1
            word = f"w{self._count}"
            if entry := tab.page.evaluate("given => window.races?.step(...given)", [name, share, word]):
                self._taken.append(f"{tab.name} {name} {entry}")
                return name
            self.tabs[0].page.wait_for_timeout(5)
        raise self._wrong("No step is possible.")

    # What has to be true at rest.

    def _compare(self) -> None:
        self._late.calm = True
        self._rest()
        now = self._noted()
        for left in reversed(range(LOOKS)):
            try:
                self._judge(now)
                break
            except WrongScreen as wrong:
                if not left:
                    raise self._wrong(str(wrong)) from None
                self.tabs[0].page.wait_for_timeout(1_000)
                self._rest()
        for tab in self.tabs:  # where they are, even if that was left open
            place = place_of(tab.page.evaluate("location.search"))
            if place != "new" or not tab.place.startswith("new"):
                tab.goes(place)
        self._taken.append("-- compared --")

    def _rest(self) -> None:
        rested = 0
        for _ in range(PATIENCE_MS // LOOK_MS):
            rested = rested + 1 if self._rests() else 0
            if rested == 3:
                return
            self.tabs[0].page.wait_for_timeout(LOOK_MS)
        raise self._wrong("The tabs do not come to rest.")

    def _rests(self) -> bool:
        user, replies = self._service.store.users.ensure("local"), self._service.in_progress
        if self._late.underway or replies.all_of(user) or replies.waiting(user):
            return False
        try:
            return all(tab.page.evaluate(WAITS) == "" for tab in self.tabs)
        except Error:
            return False

    def _noted(self) -> Round:
        """Follow what was done in each tab to where it must have led."""
        now = Round()
        for tab in self.tabs:
            for entry in tab.page.evaluate("races.log()"):
                self._follow(tab, entry, now)
        self._gone |= now.deleted
        return now

    def _follow(self, tab: Tab, entry: dict[str, Any], now: Round) -> None:
        match entry["did"]:
            case "new":
                tab.goes("new")
            case "opened":
                tab.goes(str(entry["id"]))
            case "view":
                tab.goes(f"view {entry['name']}")
            case "went" | "loaded":
                tab.goes(place_of(entry["search"]))
            case "typed":
                self._words[entry["word"]] = Word(tab, tab.place)
            case "sent":
                for name in WORD.findall(entry["text"]) if not tab.place.startswith("view") else ():
                    word = self._words[name]
                    if not word.sent:
                        word.place, word.sent = tab.place, True
            case "edited":
                self._words[entry["word"]] = Word(tab, tab.place, sent=True, edited=True)
            case "deleted":
                now.deleted.add(entry["id"])
                if tab.place == str(entry["id"]):
                    tab.goes("new")
                    tab.left = str(entry["id"])
            case "undone":
                now.deleted.add(entry["id"])
                if tab.left == str(entry["id"]):
                    tab.goes(tab.left)
            case "renamed":
                now.renamed.setdefault(entry["id"], {})[tab.name] = entry["title"]

    def _judge(self, now: Round) -> None:
        """Raise WrongScreen if anything is not as it must be."""
        stored = self._stored()
        owns = {tab.name: tab.page.evaluate("races.own()") for tab in self.tabs}
        for tab in self.tabs:
            self._judge_screen(tab, owns[tab.name])
            self._judge_place(tab, stored, now)
        self._judge_words(stored, owns)
        self._judge_chats(now)

    def _judge_screen(self, tab: Tab, own: dict[str, Any]) -> None:
        shows = tab.page.evaluate("races.screen()")
        if shows["writes"] or "Still writing" in own["line"]:
            raise WrongScreen(f"Tab {tab.name} says that a reply is written: {own['line']}")
        fresh = self._context.new_page()
        try:
            fresh.goto(self._address + shows["address"])
            for _ in range(PATIENCE_MS // LOOK_MS):
                if not (waits := fresh.evaluate(WAITS)):
                    break
                fresh.wait_for_timeout(LOOK_MS)
            else:
                raise WrongScreen(f"A fresh tab does not rest: {waits}")
            for _ in range(2_000 // LOOK_MS):
                if (wanted := fresh.evaluate("races.screen()")) == shows:
                    break
                fresh.wait_for_timeout(LOOK_MS)
        finally:
            fresh.close()
        if wanted != shows:
            differ = [
                f"{part}:\n  shows {shows[part]}\n  fresh {wanted[part]}"
                for part in wanted
                if shows[part] != wanted[part]
            ]
            raise WrongScreen("\n".join([f"Tab {tab.name} differs from a fresh one.", *differ]))

    def _judge_place(self, tab: Tab, stored: "Stored", now: Round) -> None:
        place = self._resolved(tab.place, stored)
        if place.isdecimal() and (int(place) in now.deleted or int(place) not in stored.chats):
            return
        there = place_of(tab.page.evaluate("location.search"))
        if there != ("new" if place.startswith("new") else place):
            raise WrongScreen(
                f"Tab {tab.name} is at {there}, and the last click led to {tab.place} ({place})."
            )

    def _judge_words(self, stored: "Stored", owns: dict[str, Any]) -> None:
        """Each word is in the chat from whose screen it was sent, or still in the box there; once. A box of a chat that
        was deleted does not count."""
        for name, word in self._words.items():
            place = self._resolved(word.place, stored)
            asked = stored.words.get(name, [])
            boxes = [
                (tab, at)
                for tab in self.tabs
                for at, text in self._kept(tab, owns[tab.name]).items()
                for found in WORD.findall(text)
                if found == name
            ]
            kept = [(tab, at) for tab, at in boxes if at == "0" or int(at) not in self._gone]
            there = f"asked in {asked}, in boxes of {[(tab.name, at) for tab, at in kept]}"
            said = f"{name}, of {word.tab.name} at {word.place} ({place}), is {there}."
            if len(asked) + len(kept) > 1 or any(tab is not word.tab for tab, _ in kept):
                raise WrongScreen(said)
            if place.isdecimal() and (int(place) in self._gone or int(place) not in stored.chats):
                continue  # deleted, with what was sent there
            may = {place} if place.isdecimal() else set()
            may |= (
                {"0"} if word.place.startswith("new") else set()
            )  # typed before the page knew the chat's number
            if word.place.startswith("view"):  # typed before the box went
                may = {at for _, at in kept}
            gone = place.startswith("new") and bool(stored.ever & self._gone)
            if not asked and not boxes and not gone:
                raise WrongScreen(f"Lost: {said}")
            if asked and not word.sent:
                raise WrongScreen(f"Never sent: {said}")
            if not ({str(chat) for chat in asked} | {at for _, at in kept} <= may):
                raise WrongScreen(f"Elsewhere: {said}")
            if kept and not asked and word.sent:
                if not word.edited:
                    raise WrongScreen(f"Not sent: {said}")
                word.sent = False

    def _kept(self, tab: Tab, own: dict[str, Any]) -> dict[str, str]:
        """What is in the box, and kept for other chats, by the chat; "0": a new one."""
        there = place_of(tab.page.evaluate("location.search"))
        here = there if there.isdecimal() else "0"
        return {**own["unsent"], here: own["box"]}

    def _judge_chats(self, now: Round) -> None:
        with self._service.store.connection.read() as db:
            rows = db.execute("SELECT id, title FROM conversations").fetchall()
        for id, title in rows:
            titles = now.renamed.get(id, {})
            if titles and title not in titles.values():
                raise WrongScreen(f"Chat {id} is called {title}, and was renamed: {titles}.")

    def _resolved(self, place: str, stored: "Stored") -> str:
        """The chat that was begun on that visit to the empty page, if any."""
        if not place.startswith("new"):
            return place
        asked = (name for name, word in self._words.items() if word.sent and word.place == place)
        return next((str(chat) for name in asked for chat in stored.words.get(name, [])), place)

    def _stored(self) -> "Stored":
        with self._service.store.connection.read() as db:
            chats = db.execute("SELECT id FROM conversations WHERE hidden_by IS NULL").fetchall()
            rows = db.execute("SELECT conversation_id, text FROM messages WHERE role = 'user'").fetchall()
            last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'conversations'").fetchone()
        words: dict[str, list[int]] = {}
        for chat, text in rows:
            for name in WORD.findall(text):
                words.setdefault(name, []).append(chat)
        return Stored({id for (id,) in chats}, words, set(range(1, last[0] + 1)) if last else set())

    def _wrong(self, sentence: str) -> WrongScreen:
        screens = []
        for tab in self.tabs:
            try:
                shown = tab.page.evaluate(f"({{ ...races.screen(), ...races.own(), waits: {WAITS} }})")
            except Error as error:
                shown = {"": str(error)}
            screens.append(f"Tab {tab.name}:\n" + "\n".join(f"  {part}: {shown[part]}" for part in shown))
        said = [f"Seed {self._seed}, after {self._count} tries.", sentence, "Last steps:", *self._taken[-40:]]
        return WrongScreen("\n".join([*said, *screens]))


@dataclass(frozen=True)
class Stored:
    """What the store holds."""

    chats: set[int]
    words: dict[str, list[int]]
    """The chats of the messages that hold a word."""
    ever: set[int]
    """All chats that ever were."""
