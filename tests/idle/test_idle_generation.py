"""Idle generation: what is written, for whom and when; given up at once, and deleted to the byte."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hierchat.chat import idle_generation, prompts
from hierchat.chat import spare_time as machines
from hierchat.chat.idle_generation import IdleState, Writer
from hierchat.chat.in_progress import NewQuestion
from hierchat.chat.prompts import VARIATIONS, Script, mixed, own_scripts
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import BUSY, ON_BATTERY, Machine
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.local import LocalEngine
from hierchat.models.formats.blocks import pack
from hierchat.runtime.prompt import PromptBuilder, PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.deleting import delete_for_good
from tests.testing.tiny import block_model
from tests.testing.tiny_chat import CONTEXT, END, SYSTEM, Steady, model, ready_slot, spy, tokenizer
from tests.testing.waiting import until

PLACES = 4
ASKED = [
    Script(f"k{number}", "kind", turns, 0.7 if number % 2 else 0.0, number)
    for number, turns in enumerate(
        [("What?",), ("List it.", "Shorter."), ("The weekend.", "Sum up: {reply}"), ("x " * 500,), ("Why?",)]
    )
]


@cache
def weights() -> Any:
    return block_model(model(), lambda floats: pack(floats, 8))


def make_served(name: str = "tiny") -> ServedModel:
    """Ready to answer; up to PLACES replies share a forward."""
    runner = CpuRunner(weights(), context_length=CONTEXT, threads=1, sequences=PLACES)
    engine = LocalEngine(runner.open(), {END}, tokenizer().decode, PLACES)
    engine.latency = Steady()
    return ServedModel(name, f"key of {name}", engine, PromptBuilder(tokenizer(), CONTEXT, SYSTEM), 1.0)


@dataclass
class Calm:
    """A machine that has time to spare, unless a test says otherwise."""

    said: str = ""

    def trouble(self) -> str:
        return self.said


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))
    monkeypatch.setattr(idle_generation, "MOST_TOKENS", 20)
    monkeypatch.setattr(idle_generation, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(idle_generation, "Machine", Calm)
    for module in (prompts, idle_generation):
        monkeypatch.setattr(module, "shipped_scripts", lambda: ASKED)


@dataclass
class Writing:
    """One user's, with calls short enough for tests."""

    store: Store
    model: ServedModel = field(default_factory=make_served)
    name: str = "ann"

    def __post_init__(self) -> None:
        self.user = self.store.users.ensure(self.name)

    def writer(self, stop: threading.Event | None = None) -> Writer:
        return Writer(self.store, self.model, self.user, GenerationSettings(), stop or threading.Event())

    def write(
        self, scripts: list[Script], goes_on: Callable[[], bool] = lambda: True, *, keep: bool = True
    ) -> Writer:
        made = self.writer()
        made.write(scripts, goes_on)
        if keep:
            made.keep()
        return made

    def texts(self, scripts: list[Script] = ASKED) -> dict[str, list[tuple[int, ...]]]:
        """The finished replies, by conversation."""
        found = {
            one.key: [
                text.ids
                for text in self.store.generated.texts(self.user, self.model.model_key, one.key)
                if text.done
            ]
            for one in scripts
        }
        return {key: replies for key, replies in found.items() if replies}


@pytest.fixture
def writing(store: Store) -> Writing:
    return Writing(store)


DONE = {one.key: len(one.turns) for one in ASKED if one.key != "k3"}  # the long one does not fit


@pytest.fixture
def service(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatService]:
    monkeypatch.setattr(idle_generation, "BEGIN_SECONDS", 0.0)
    made = ChatService(store, ready_slot(lambda name, report: make_served(name)))
    yield made
    made.close()


def written(service: ChatService, user: int) -> dict[str, int]:
    return service.store.generated.replies(user, "key of tiny")


def ask(service: ChatService, user: int, text: str = "Where does it end?", **settings: Any) -> Any:
    chat = service.store.chats.create(user)
    usual = {"max_new_tokens": 12, "logit_bias": {END: -100.0}}
    asked = service.send(
        user, NewQuestion(chat, None, text), GenerationSettings(**{**usual, **settings}), threading.Event()
    )
    return chat, list(asked)[-1]


def test_off_until_it_is_allowed(service: ChatService, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    user = store.users.ensure("ann")
    assert service.idle.state(user).phase == "off"
    assert written(service, user) == {}
    monkeypatch.setattr(idle_generation, "BEGIN_SECONDS", 3600.0)
    service.idle.allow(user, on=True)
    assert service.idle.state(user).phase == "waiting"
    monkeypatch.setattr(idle_generation, "MOST_WRITTEN", 30)
    monkeypatch.setattr(idle_generation, "BEGIN_SECONDS", 0.0)
    service.idle.allow(user, on=True)
    until(lambda: service.idle.state(user).phase == "full")
    assert 30 <= store.generated.size(user).tokens < 40
    monkeypatch.setattr(idle_generation, "MOST_WRITTEN", 500_000)
    service.idle.allow(user, on=True)
    until(lambda: written(service, user) == DONE)
    assert store.chats.find(user) == []
    size = store.generated.size(user).tokens
    service.idle.allow(user, on=False)
    assert service.idle.state(user) == IdleState("off", size)


def test_it_drafts_for_that_user_and_says_so(service: ChatService, store: Store) -> None:
    """The same question gives the same greedy reply, which was written before: nearly all of it is drafted."""
    ann, ben = store.users.ensure("ann"), store.users.ensure("ben")
    service.idle.allow(ann, on=True)
    until(lambda: written(service, ann) == DONE)
    service.idle.allow(ann, on=False)

    def asked(user: int) -> tuple[Any, int]:
        """The reply, and how many of its tokens idle generation drafted."""
        _, last = ask(service, user, "Why?", max_new_tokens=20, logit_bias={})
        spans = store.replies.spans(user, last.message_id)
        return last, sum(span.length for span in spans if span.origin.slot == "self")

    (mine, found), (others, none) = asked(ann), asked(ben)
    assert found > 0 == none
    assert "self" in {run.origin.slot for run in service.runs(ann, mine.message_id)}
    store.users.choose(ann, drafts_from="chat")
    alone, none = asked(ann)
    assert none == 0
    assert alone.text == others.text == mine.text


def test_questions_of_the_user_are_asked_again(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    chat, _ = ask(service, user, "Where does the river end?")
    service.idle.allow(user, on=True)
    until(lambda: len(written(service, user)) > len(DONE) + 3)
    service.idle.allow(user, on=False)
    assert set(DONE) <= set(written(service, user))
    delete_for_good(store, user, chat)
    assert set(written(service, user)) == set(DONE)
    _, last = ask(service, user, "Why?", max_new_tokens=4)  # and the index knows
    assert last.finish


class Order:
    """What is computed, in order: by whom each forward and each reading of a prompt is begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[str] = []
        self.before: Callable[[], None] = lambda: None
        """Called when the learning begins to compute something."""
        self._inside = threading.local()
        for kind, name in ((CpuRunner, "forward"), (CpuSequence, "forward"), (CpuSequence, "read")):
            monkeypatch.setattr(kind, name, self._watched(getattr(kind, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def computing(*args: Any, **named: Any) -> Any:
            if getattr(self._inside, "deep", False):  # a reading is made of forwards
                return original(*args, **named)
            self._inside.deep = True
            try:
                mine = threading.current_thread().name == "learning"
                self.began.append("learning" if mine else "person")
                if mine:
                    self.before()
                return original(*args, **named)
            finally:
                self._inside.deep = False

        return computing


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    return Order(monkeypatch)


def asked_meanwhile(service: ChatService, order: Order, user: int, now: Callable[[], bool]) -> int:
    """Begin to write for ann, let `user` ask once something begins to be computed while `now`, and wait for the reply;
    how much had begun by then. Idle generation does not begin anew."""
    person, asked_at = threading.Thread(target=lambda: ask(service, user)), list[int]()

    def joining() -> None:
        if now() and not asked_at:
            person.start()
            until(lambda: service.slot.scheduler.waiting)
            service.idle._touched = time.monotonic() + 3600
            asked_at.append(len(order.began))

    order.before = joining
    service.idle.allow(service.store.users.ensure("ann"), on=True)
    until(lambda: asked_at)
    person.join()
    return asked_at[0]


@pytest.mark.parametrize("at", [2, 30])
def test_who_asks_has_the_next_forward(service: ChatService, store: Store, order: Order, at: int) -> None:
    """Whether it is reading prompts or writing: after the step that is under way nothing of it is computed, and its
    sequences are free. Later it goes on with what was half there."""
    user, other = store.users.ensure("ann"), store.users.ensure("ben")
    before = len(order.began)
    joined = asked_meanwhile(service, order, other, lambda: len(order.began) - before == at)
    assert order.began[before:joined] == ["learning"] * at
    assert set(order.began[joined:]) == {"person"}
    assert service.idle.state(user).phase == "waiting"
    until(lambda: store.generated.size(user).tokens > 0 or at == 2)  # kept once the model is given back
    order.before = lambda: None
    service.idle._touched = 0.0
    until(lambda: written(service, user) == DONE)
    service.idle.allow(user, on=False)
    with Store.open(store.path.with_name("plain.db")) as another:
        whole = Writing(another, service.slot.model)
        whole.write(ASKED)
        assert Writing(store, service.slot.model).texts() == whole.texts()


@pytest.mark.parametrize("by", ["typing", "a busy machine"])
def test_what_stops_it(service: ChatService, store: Store, order: Order, by: str) -> None:
    user, spare = store.users.ensure("ann"), service.idle._machine
    stopped_at: list[int] = []

    def stopping() -> None:
        if service.idle._writer and service.idle._writer.tokens and not stopped_at:
            stopped_at.append(len(order.began))
            if by == "typing":
                service.idle.touched()
                service.idle._touched += 3600
            else:
                spare.said = BUSY

    order.before = stopping
    service.idle.allow(user, on=True)
    stopped = ("waiting", "") if by == "typing" else ("not now", BUSY)
    until(lambda: stopped_at and service.idle.state(user).phase == stopped[0])
    assert service.idle.state(user).reason == stopped[1]
    if by == "typing":
        assert order.began[stopped_at[0] :] == []
    until(lambda: store.generated.size(user).tokens > 0)  # kept once the model is given back
    assert written(service, user) != DONE
    spare.said, service.idle._touched = "", 0.0
    until(lambda: written(service, user) == DONE)


@pytest.mark.parametrize("what", ["delete", "forget"])
def test_deleted_while_it_writes(service: ChatService, store: Store, order: Order, what: str) -> None:
    user = store.users.ensure("ann")
    enough = threading.Event()
    order.before = lambda: enough.set() if len(order.began) > 12 else None
    service.idle.allow(user, on=True)
    enough.wait()
    if what == "delete":
        assert service.idle.delete(user)
        service.idle.allow(user, on=False)
    else:
        assert service.forget_user(user)
        assert service.idle.state(user).phase == "off"
    until(lambda: service.idle._writer is None)
    service.idle.delete(user)
    assert store.generated.size(user).texts == 0


def test_users_take_turns(service: ChatService, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second with each step."""
    seen, keep, step = list[int](), store.generated.keep, Writer._step
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def timed(writer: Writer) -> None:
        step(writer)
        clock.now += 1.0

    monkeypatch.setattr(Writer, "_step", timed)
    monkeypatch.setattr(idle_generation, "time", clock)
    monkeypatch.setattr(idle_generation, "TURN_SECONDS", 6.0)
    monkeypatch.setattr(
        store.generated, "keep", lambda user, *a, **n: seen.append(user) or keep(user, *a, **n)
    )
    users = [store.users.ensure(name) for name in ("ann", "ben")]
    for user in users:
        store.users.choose(user, learns=True)
    service.idle.wake()
    until(lambda: all(written(service, user) == DONE for user in users))
    assert sum(one != other for one, other in pairwise(seen)) > 2


@pytest.mark.parametrize(
    ("battery", "others", "said"),
    [
        (None, 0.0, ""),
        (None, 0.9, BUSY),
        (SimpleNamespace(power_plugged=True), 0.0, ""),
        (SimpleNamespace(power_plugged=False), 0.0, ON_BATTERY),
        (SimpleNamespace(power_plugged=None), 0.0, ON_BATTERY),
    ],
)
def test_when_a_machine_has_time_to_spare(
    monkeypatch: pytest.MonkeyPatch, battery: Any, others: float, said: str
) -> None:
    """Of its own use it takes no notice."""
    now = SimpleNamespace(seconds=100.0, mine=0.0, others=0.0)

    class Times(tuple):
        idle, iowait, guest, guest_nice = 0.0, 0.0, 1.0, 0.0

    process = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=now.mine, system=0.0))
    monkeypatch.setattr(machines.time, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(machines.psutil, "Process", lambda: process)
    monkeypatch.setattr(machines.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(machines.psutil, "cpu_times", lambda: Times((now.mine + now.others, 1.0)))
    monkeypatch.setattr(machines.psutil, "sensors_battery", lambda: battery, raising=False)
    machine = Machine()
    for _ in range(3):
        now.seconds += 5.0
        now.mine += 10.0
        now.others += 5.0 * others
        assert machine.trouble() == said
    now.others += 100.0
    assert machine.trouble() == said  # looked at once a second


def plain(writing: Writing) -> dict[str, list[tuple[int, ...]]]:
    """Each conversation alone, one reply after the other."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for script in ASKED:
        said: list[PromptMessage] = []
        for turn in script.turns:
            if "{reply}" in turn:
                turn, said = turn.replace("{reply}", said[-1].text), []
            said.append(PromptMessage("user", turn))
            settings = GenerationSettings(temperature=script.temperature, seed=script.seed, max_new_tokens=20)
            if len(turn) > 900:
                break
            prompt = writing.model.prompts.build(said, 20, {END}).ids
            steps = writing.model.local.generate(GenerationRequest(prompt, settings))
            ids = tuple(token for step in steps for token in step.tokens)
            found.setdefault(script.key, []).append(ids)
            said.append(PromptMessage("assistant", tokenizer().decode(ids, skip_special_tokens=True), ids))
    return found


def test_replies_are_those_of_plain_decoding_and_share_forwards(writing: Writing) -> None:
    together: list[int] = []
    spy(writing.model.local.runner, "forward", lambda segments, **named: together.append(len(segments)))
    made = writing.write(ASKED)
    assert max(together) == made.streams == 3  # the fourth place is that of a chat
    assert writing.texts() == plain(writing)
    assert made.tokens == writing.store.generated.size(writing.user).tokens
    assert made.replies == sum(map(len, writing.texts().values()))


@pytest.mark.parametrize(("steps", "keep"), [(6, True), (17, True), (57, False)])
def test_interrupted_again_and_again_it_comes_to_the_same(
    writing: Writing, tmp_path: Path, steps: int, keep: bool
) -> None:
    """With and without what was half there: a killed process keeps less."""
    writing.write(ASKED)
    whole, size = writing.texts(), writing.store.generated.size(writing.user).tokens
    with Store.open(tmp_path / "again.db") as store:
        again = Writing(store, writing.model)
        for _ in range(300):
            numbers, before = count(1), again.texts()
            again.write(ASKED, lambda numbers=numbers: next(numbers) < steps, keep=keep)
            if again.texts() == whole:
                break
            assert keep or again.texts() != before
        assert again.texts() == whole
        assert store.generated.size(again.user).tokens == size


def test_half_replies_are_kept_on_the_way(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_generation, "KEEP_SECONDS", 0.0)
    numbers = count(1)
    writing.write(ASKED, lambda: next(numbers) < 6, keep=False)
    kept, key = writing.store.generated, writing.model.model_key
    texts = [text for one in ASKED for text in kept.texts(writing.user, key, one.key)]
    assert [bool(text.ids) for text in texts if not text.done] == [True] * 3


def test_a_chat_stays_in_its_slots_meanwhile(writing: Writing) -> None:
    engine = writing.model.local
    prompt = writing.model.prompts.build([PromptMessage("user", "Where does it end?")], 20).ids
    list(engine.generate(GenerationRequest(prompt, GenerationSettings(max_new_tokens=8), user=writing.user)))
    held = engine.shared(prompt, writing.user)
    assert held >= len(prompt)
    writing.write(ASKED)
    assert engine.shared(prompt, writing.user) == held


def test_what_was_begun_before_a_deletion_is_not_kept(writing: Writing) -> None:
    """It may be made from what was deleted."""
    numbers = count(1)

    def deleting() -> bool:
        if next(numbers) == 3:
            writing.store.generated.delete(writing.user)
        return True

    made = writing.write(ASKED, deleting)
    assert made.stopped
    assert writing.store.generated.size(writing.user).texts == 0


def test_questions_like_the_users_own() -> None:
    asked = list(own_scripts([(7, "Why is {reply} blue?"), (3, "Why {question}?")]))
    assert len(asked) == 2 * len(VARIATIONS) == len({one.key for one in asked})
    assert [one.origin for one in asked[:4]] == [7, 3, 7, 3]
    assert asked[1].turns == ("Why {question}?",)
    assert all(one.temperature > 0 for one in asked[:2])  # not once more what stands in the chat
    assert all("Why is {reply} blue?" in one.turns[0] for one in asked if one.origin == 7)
    assert [one.key for one in mixed(asked[:2], ASKED)][:4] == [asked[0].key, "k0", asked[1].key, "k1"]
