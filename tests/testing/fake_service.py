"""A scripted ChatService over a real store: no model, no torch, and a pace that a test can set."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from hierchat.chat.chat_documents import ChatDocuments, quotes
from hierchat.chat.comparison import ARMS, USUAL, names
from hierchat.chat.completions import ModelTurn
from hierchat.chat.conversations import Conversations
from hierchat.chat.frames import CompareFrame, Figures, Frame, Verdict
from hierchat.chat.in_progress import InProgress, NewQuestion
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import NextQuestion
from hierchat.chat.statistics import SourceRun
from hierchat.chat.tools import ToolServers
from hierchat.chat.user_data import UserData
from hierchat.config import GenerationSettings
from hierchat.engine.scheduler import Scheduler
from hierchat.runtime import model_slot
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store import Store, StoreError
from hierchat.store.records import UNKNOWN, NewMessage, NewTurn, Origin, TurnFigures
from tests.testing.fake_shelf import FakeModelManager
from tests.testing.fake_user_documents import FakeTexts
from tests.testing.stores import new_store

REPLY = """Here is a Python function that reverses a string:

```python
def reverse_string(s: str) -> str:
    return s[::-1]
```

It walks the string **backwards** with a slice. Strings in Python are immutable, so the original stays as it was:

1. `s[::-1]` makes a new string.
2. The old one is untouched.

A test is short: `assert reverse_string("abc") == "cba"`. Ask if you would like it to handle combined characters too.
"""
LOOK_SECONDS = 0.25
"""Between two frames of a reply. At the program's 12 a second a browser that gets a tenth of a core draws for good, and
no click of a test comes through."""
SOURCES = ("context", "history", "target", "statistics", "target", "SmolLM2 tiny")

WRITTEN = NewTurn(
    "SmolLM2 135M", "", GenerationSettings(temperature=0.7, top_p=0.9).model_dump(mode="json"), 7, True
)


SlotStatus = partial(model_slot.SlotStatus, exact=True)


class FakeSlot:
    """A slot whose status a test sets by hand."""

    def __init__(self) -> None:
        self.names = ["SmolLM2 135M", "Qwen3 0.6B"]
        self.status = SlotStatus(self.names[0], "ready")
        self.started: list[str] = []
        self.scheduler = Scheduler()

    @property
    def model(self) -> object | None:
        return self if self.status.phase == "ready" else None

    def start(self, name: str) -> None:
        self.started.append(name)
        self.status = SlotStatus(name, "ready")

    def eject(self) -> None:
        self.status = SlotStatus("", "none")

    def hush(self) -> None:
        self.status = replace(self.status, message="")

    def settings(self, name: str) -> GenerationSettings:
        return GenerationSettings(temperature=0.7 if "Qwen" in name else 0.0, max_new_tokens=512)


@dataclass
class Script:
    """How the next replies go."""

    reply: str = REPLY
    seconds: float = 0.0
    reading_seconds: float = 0.0
    fail: str | None = None
    raises: Exception | None = None
    finish: str = "end"
    origin: int | None = None
    """The message that history drafts the next replies from."""
    window: int = 8192
    """Turns that the next prompt of any chat leaves out."""
    thought_seconds: float | None = None
    thinks: tuple[str, ...] = ()
    held: bool = False
    """Whether a reply goes on, however slow the machine is, until it is stopped or released."""

    def hold(self, seconds: float = 60.0) -> None:
        """Have replies grow for so long, and then wait before their last word."""
        self.seconds, self.held = seconds, True

    def release(self, seconds: float = 0.0) -> None:
        """Have replies end, so long after they began."""
        self.seconds, self.reading_seconds, self.held = seconds, 0.0, False


class FakeService(ChatService):
    """A ChatService without a model: whatever needs one comes from the script."""

    passage_budget = 2_000

    def __init__(self, store: Store) -> None:
        self.store, self.slot, self.script = store, FakeSlot(), Script()
        self.asked: list[tuple[str, GenerationSettings]] = []
        self.read: list[NextQuestion] = []
        """What was to be read ahead."""
        self.changes = store.changes
        self.presets, self.projects = store.presets, store.projects
        self.in_progress = InProgress(store)
        self.deleted_texts = SimpleNamespace(caches=[], screens=[], overwrites=[])
        self.chats = Conversations(store, self.in_progress, self.sampling_of)
        self.data = UserData(store)
        self.users, self.keys = store.users, store.keys
        store.users.ensure("local")
        self.dismiss_model_message = self.slot.hush
        self.models = FakeModelManager(self.slot)
        self.texts = FakeTexts()
        self.documents = ChatDocuments(store.connection)
        self.tools = ToolServers(store)
        self._runs: dict[int, list[SourceRun]] = {}
        self._figures: dict[int, Figures] = {}

    @property
    def user(self) -> int:
        """The user of a page without a login."""
        return self.store.users.ensure("local")

    @property
    def thinks(self) -> tuple[str, ...]:
        return self.script.thinks

    def read_ahead(self, asked: NextQuestion) -> None:
        self.read.append(asked)

    def choose_reading_ahead(self, user_id: int, *, on: bool) -> None:
        self.store.users.choose(user_id, reads_ahead=on)

    def forget_read_ahead(self, user_id: int) -> None:
        self.read.clear()

    def forget_user(self, user_id: int) -> bool:
        self.in_progress.end(user_id)
        return self.store.users.forget(user_id)

    def require_room(self, text, settings, system_prompt="") -> None:
        over = len(text.split()) - self.script.window
        if over > 0:
            raise MessageTooLong(f"This message is {over:,} tokens too long. Shorten it.")

    def send(self, user_id, asked: NewQuestion, settings, stop) -> Iterator[Frame]:
        def begin() -> Iterator[Frame]:
            if self.script.raises:
                raise self.script.raises
            question = self._stored(user_id, asked)
            self.asked.append((asked.text, settings))
            yield from self._reply(user_id, asked.conversation_id, question, settings, stop)

        yield from self._in_turn(stop, begin)

    def regenerate(self, user_id, user_message_id, settings, stop, *, seed_of=None) -> Iterator[Frame]:
        message = self.store.messages.get(user_id, user_message_id)
        seed = self.store.replies.turn(user_id, seed_of).begun.seed if seed_of else settings.seed
        settings = GenerationSettings(**{**settings.model_dump(), "seed": seed})
        self.asked.append(("", settings))
        yield from self._in_turn(
            stop, lambda: self._reply(user_id, message.conversation_id, message.id, settings, stop)
        )

    def resume(self, user_id, message_id, more, stop) -> Iterator[Frame]:
        def begin() -> Iterator[Frame]:
            message = self.store.messages.get(user_id, message_id)
            self.store.replies.resume(user_id, message_id)
            yield from self._written(message_id, stop, message.text + " ")

        yield from self._in_turn(stop, begin)

    def _in_turn(self, stop, begin) -> Iterator[Frame]:
        with ModelTurn(self.slot, stop) as turn:
            for ahead in turn.waiting():
                yield Frame("waiting", ahead=ahead)
            if turn.model is not None:
                yield from begin()

    def _stored(self, user_id, asked: NewQuestion) -> int:
        chat, parent, path = asked.conversation_id, asked.parent_id, []
        if parent:
            path = self.store.messages.path(user_id, chat, parent)
        found = self.documents.found(user_id, chat, asked.text, path)
        budget, count = self.passage_budget, lambda text: len(text.split())
        files = [*asked.files, *quotes(found, path, lambda: budget, count)]
        message = NewMessage(parent, asked.text, files=files)
        waited = [] if asked.held is None else [asked.held]
        return self.store.messages.add(user_id, chat, message, waited)

    def compare(self, user_id, asked: NewQuestion, settings, stop, pair=USUAL) -> Iterator[CompareFrame]:
        named = names(pair)
        arms = {arm: Frame("waiting", name=named[arm]) for arm in ARMS}
        with ModelTurn(self.slot, stop) as turn:
            for ahead in turn.waiting():
                yield CompareFrame({arm: replace(frame, ahead=ahead) for arm, frame in arms.items()}, None)
            if turn.model is not None:
                yield from self._compared(arms, user_id, asked, settings, stop)

    def _compared(self, arms, user_id, asked, settings, stop) -> Iterator[CompareFrame]:
        question, conversation_id = self._stored(user_id, asked), asked.conversation_id
        yield CompareFrame(dict(arms), None)
        for arm, factor in (("second", 1.0), ("first", 2.0)):
            runs = self._frames(stop, factor)
            if arm == "second":
                runs = self._reply(user_id, conversation_id, question, settings, stop)
            for frame in runs:
                if arm == "first":
                    shares = {"target": 1.0} if frame.figures.tokens else {}
                    frame = replace(frame, figures=replace(frame.figures, speedup=1.0, shares=shares))
                arms[arm] = replace(frame, name=arms[arm].name)
                yield CompareFrame(dict(arms), arm)
        if stop.is_set():
            yield CompareFrame(dict(arms), None, Verdict(True, None, "Stopped."))
            return
        same = arms["first"].text == arms["second"].text
        pace = f" “{arms['second'].name}” is 2.0\u00d7 faster."
        sentence = f"Word for word the same.{pace}" if same else f"The words differ from word 3 on.{pace}"
        yield CompareFrame(dict(arms), None, Verdict(same, 2.0, sentence, True))

    def runs(self, user_id: int, message_id: int) -> list[SourceRun]:
        """Those of history are of the message that the script names. None while another model is loaded."""
        runs = self._runs.get(message_id, [])
        if runs and self.store.replies.turn(user_id, message_id).begun.model != self.slot.status.name:
            return []
        there = self.store.messages.whereabouts(user_id, {run.origin.origin_id or 0 for run in runs})
        return [replace(run, there=there.get(run.origin.origin_id or 0)) for run in runs]

    def figures(self, user_id: int, message_id: int) -> Figures | None:
        if (figures := self._figures.get(message_id)) is None:
            return None
        turn = self.store.replies.turn(user_id, message_id)
        sampled = turn is not None and bool(turn.begun.settings.get("temperature"))
        return replace(figures, seed=turn.begun.seed if sampled else None)

    def _reply(self, user_id, conversation_id, question, settings, stop) -> Iterator[Frame]:
        turn = NewTurn(self.slot.status.name, "fake", settings.model_dump(mode="json"), settings.seed, True)
        yield from self._written(self.store.replies.begin(user_id, conversation_id, question, turn), stop)

    def _written(self, message: int, stop, begun: str = "") -> Iterator[Frame]:
        written = begun
        frame = Frame("waiting")
        state = "interrupted"
        try:
            for frame in self._frames(stop):
                frame = replace(frame, text=begun + frame.text)
                if frame.text != written:
                    self.store.replies.append(message, frame.text, [0], ["target"])
                    written = frame.text
                yield replace(frame, message_id=message)
            state = {"stopped": "stopped", "error": "interrupted"}.get(frame.finish or "", "complete")
        except StoreError as error:
            yield replace(frame, phase="done", finish="error", notice=str(error), message_id=message)
        finally:
            if state == "interrupted" and stop.is_set():
                state = "stopped"
            self._figures[message] = replace(frame.figures, finish=frame.finish, written=WRITTEN)
            self._runs[message] = _runs(written, self.script.origin)
            with suppress(StoreError):
                self.store.replies.finish(message, written, state, TurnFigures(finish=frame.finish))

    def _frames(self, stop: threading.Event, factor: float = 1.0) -> Iterator[Frame]:
        script = self.script
        began = time.monotonic()
        yield Frame("reading", prompt_tokens=1200, context_tokens=0, context_limit=8192)
        while (now := time.monotonic() - began) < script.reading_seconds and not stop.is_set():
            read = int(1200 * now / script.reading_seconds)
            yield Frame("reading", "", Figures(), read, 1200, read, 8192)
            stop.wait(LOOK_SECONDS)
        words = script.reply.split(" ")
        first = time.monotonic()
        while True:
            share = 1.0
            if script.seconds:
                share = min((time.monotonic() - first) / (script.seconds * factor), 1.0)
            count = max(1, int(len(words) * share) - (script.held and share == 1.0))
            text = script.reply if count == len(words) else " ".join(words[:count])
            figures = _figures(count * 2, time.monotonic() - first, script, first - began)
            finish = None
            if stop.is_set():
                finish = "stopped"
            elif script.fail and share > 0.5:
                finish = "error"
            elif share >= 1 and not script.held:
                finish = script.finish
            if finish == "stopped" and time.monotonic() - began < script.reading_seconds:
                text, figures = "", Figures()
            yield Frame(
                "done" if finish else "writing", text, figures, 1200, 1200, 412 + count, 8192, finish,
                script.fail if finish == "error" else None,
            )  # fmt: skip
            if finish:
                return
            stop.wait(LOOK_SECONDS)


def _figures(tokens: int, seconds: float, script: Script, first: float) -> Figures:
    return Figures(
        tokens=tokens,
        seconds=seconds,
        first_token_seconds=first,
        tokens_per_second=tokens / max(seconds, 0.05),
        tokens_per_forward=2.4,
        acceptance_rate=0.61,
        acceptance={"context": 0.7, "history": 0.55, "statistics": 0.2, "SmolLM2 tiny": 0.5},
        forwards=max(tokens // 2, 1),
        draft_ms=0.11,
        forward_ms=24.1,
        verify_ms=0.21,
        prompt_tokens=1200,
        prompt_read=300,
        read_seconds=0.5,
        plan=(("SmolLM2 tiny", 6),),
        speedup=2.31,
        baseline_tokens_per_second=26.4,
        baseline="measured",
        thought_seconds=script.thought_seconds,
        shares={"context": 0.31, "history": 0.22, "statistics": 0.06, "SmolLM2 tiny": 0.05, "target": 0.36},
    )


def _runs(text: str, origin: int | None) -> list[SourceRun]:
    runs = []
    for number, at in enumerate(range(0, len(text), 11)):
        source, piece = SOURCES[number % len(SOURCES)], text[at : at + 11]
        found = {
            "context": Origin("context", 3, 0.5, place=-7),
            "history": Origin("history", 12, 0.834, origin, place=3),
            "statistics": Origin("seed", 2, 0.3),
        }.get(source, UNKNOWN)
        runs.append(SourceRun(piece, source, 4, found, phrase=text[max(at - 20, 0) : at + 11]))
    return runs


def make(folder: Path) -> FakeService:
    """A fake over a fresh store in `folder`."""
    return FakeService(new_store(folder / "fake.db"))
