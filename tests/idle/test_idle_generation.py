"""Idle generation: what is written, for whom and when; given up at once, and deleted to the byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hierchat.chat import idle_generation
from hierchat.chat import spare_time as machines
from hierchat.chat.idle_generation import IdleState
from hierchat.chat.in_progress import Question
from hierchat.chat.prompts import VARIATIONS, mixed, own_scripts
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import BUSY, ON_BATTERY, Machine
from hierchat.cli.main import main
from hierchat.config import GenerationSettings
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.engine import GenerationRequest
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import IdleSettings
from tests.testing.tiny_chat import END, tokenizer

from .conftest import ASKED, Writing, make_served, slot

AT_ONCE = IdleSettings(True, 0.0, 500_000)


DONE = {one.key: len(one.turns) for one in ASKED if one.key != "k3"}  # the long one does not fit


@pytest.fixture(autouse=True)
def _no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.chat.titles.IDLE_SECONDS", float("inf"))


@pytest.fixture
def service(store: Store) -> Iterator[ChatService]:
    made = ChatService(store, slot())
    yield made
    made.close()


def until(true: Callable[[], Any]) -> None:
    while not true():
        time.sleep(0.002)


def written(service: ChatService, user: int) -> dict[str, int]:
    return service.store.generated.replies(user, "key of tiny")


def ask(service: ChatService, user: int, text: str = "Where does it end?", **settings: Any) -> Any:
    chat = service.store.chats.create(user)
    usual = {"max_new_tokens": 12, "logit_bias": {END: -100.0}}
    asked = service.send(
        user, Question(chat, None, text), GenerationSettings(**{**usual, **settings}), threading.Event()
    )
    return chat, list(asked)[-1]


def test_off_until_it_is_allowed(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    assert service.idle.state(user).phase == "off"
    assert written(service, user) == {}
    service.idle.choose(user, IdleSettings(True, 60.0, 500_000))
    assert service.idle.state(user).phase == "waiting"
    service.idle.choose(user, AT_ONCE)
    until(lambda: written(service, user) == DONE)
    assert store.chats.find(user) == []
    service.idle.choose(user, IdleSettings(False))
    assert service.idle.state(user) == IdleState(
        "off", IdleSettings(False), store.generated.size(user).tokens
    )


def test_it_drafts_for_that_user_and_says_so(service: ChatService, store: Store) -> None:
    """The same question gives the same greedy reply, which was written before: nearly all of it is drafted."""
    ann, ben = store.users.ensure("ann"), store.users.ensure("ben")
    service.idle.choose(ann, AT_ONCE)
    until(lambda: written(service, ann) == DONE)
    service.idle.choose(ann, IdleSettings(False))
    mine, last = ask(service, ann, "Why?", max_new_tokens=20, logit_bias={})
    _, others = ask(service, ben, "Why?", max_new_tokens=20, logit_bias={})
    assert last.text == others.text
    spans = store.replies.spans(ann, last.message_id)
    found = sum(span.length for span in spans if span.origin.slot == "self")
    assert found > 0
    assert not [span for span in store.replies.spans(ben, others.message_id) if span.origin.slot == "self"]
    assert store.generated.drafted(ann).found == found
    assert store.generated.drafted(ben).found == 0
    runs = service.runs(ann, last.message_id)
    assert "self" in {run.origin.slot for run in runs}
    store.users.choose(ann, drafts_from="chat")
    _, alone = ask(service, ann, "Why?", max_new_tokens=20, logit_bias={})
    assert alone.text == last.text
    assert not [span for span in store.replies.spans(ann, alone.message_id) if span.origin.slot == "self"]
    assert mine


def test_questions_of_the_user_are_asked_again(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    chat, _ = ask(service, user, "Where does the river end?")
    service.idle.choose(user, AT_ONCE)
    until(lambda: len(written(service, user)) > len(DONE) + 3)
    service.idle.choose(user, IdleSettings(False))
    assert set(DONE) <= set(written(service, user))
    store.chats.hide(user, chat)
    store.chats.delete_hidden()
    assert set(written(service, user)) == set(DONE)
    _, last = ask(service, user, "Why?", max_new_tokens=20)  # and the index knows
    assert last.finish


class Order:
    """What is computed, in order: by whom each forward and each reading of a prompt is begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[str] = []
        self.before: Callable[[], None] = lambda: None
        """Called when the learning begins to compute something."""
        inside = threading.local()

        def watched(kind: type, name: str) -> None:
            original = getattr(kind, name)

            def computing(*args: Any, **named: Any) -> Any:
                if getattr(inside, "deep", False):  # a reading is made of forwards
                    return original(*args, **named)
                inside.deep = True
                try:
                    mine = threading.current_thread().name == "learning"
                    self.began.append("learning" if mine else "person")
                    if mine:
                        self.before()
                    return original(*args, **named)
                finally:
                    inside.deep = False

            monkeypatch.setattr(kind, name, computing)

        watched(CpuRunner, "forward")
        watched(CpuSequence, "forward")
        watched(CpuSequence, "read")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    return Order(monkeypatch)


@pytest.mark.parametrize("at", [2, 9, 30])
def test_who_asks_has_the_next_forward(service: ChatService, store: Store, order: Order, at: int) -> None:
    """Whether it is reading prompts or writing: after the step that is under way nothing of it is computed, and its
    sequences are free. Later it goes on with what was half there."""
    user, other = store.users.ensure("ann"), store.users.ensure("ben")
    before = len(order.began)
    person = threading.Thread(target=lambda: ask(service, other))
    asked_at: list[int] = []

    def joining() -> None:
        if len(order.began) - before == at and not asked_at:
            person.start()
            until(lambda: service.slot.scheduler.waiting)
            # It does not begin anew before the reply is there.
            service.idle._touched = time.monotonic() + 3600
            asked_at.append(len(order.began))

    order.before = joining
    service.idle.choose(user, AT_ONCE)
    until(lambda: asked_at)
    person.join()
    (joined,) = asked_at
    assert order.began[before:joined] == ["learning"] * at
    assert set(order.began[joined:]) == {"person"}
    assert service.idle.state(user).phase == "waiting"
    until(lambda: store.generated.size(user).tokens > 0 or at < 9)  # kept once the model is given back
    order.before = lambda: None
    service.idle._touched = 0.0
    until(lambda: written(service, user) == DONE)
    service.idle.choose(user, IdleSettings(False))
    with Store.open(store.path.with_name("plain.db")) as another:
        whole = Writing(another, service.slot.model)
        whole.write(ASKED)
        mine = Writing(store, service.slot.model)
        assert mine.texts() == whole.texts()


def test_typing_stops_it(service: ChatService, store: Store, order: Order) -> None:
    user = store.users.ensure("ann")
    typed_at: list[int] = []

    def typing() -> None:
        writer = service.idle._writer
        if writer and writer.tokens and not typed_at:
            typed_at.append(len(order.began))
            service.idle.touched()
            service.idle._touched += 3600

    order.before = typing
    service.idle.choose(user, AT_ONCE)
    until(lambda: typed_at and service.idle.state(user).phase == "waiting")
    assert order.began[typed_at[0] :] == []
    until(lambda: store.generated.size(user).tokens > 0)  # kept once the model is given back


def test_a_busy_machine_stops_it(service: ChatService, store: Store, order: Order) -> None:
    user = store.users.ensure("ann")
    spare: Any = service.idle._machine
    wrote = lambda: service.idle._writer and service.idle._writer.tokens  # noqa: E731
    order.before = lambda: setattr(spare, "said", BUSY if wrote() else "")
    service.idle.choose(user, AT_ONCE)
    until(lambda: service.idle.state(user).phase == "not now")
    assert service.idle.state(user).reason == BUSY
    until(lambda: store.generated.size(user).tokens > 0)  # kept once the model is given back
    assert written(service, user) != DONE
    order.before = lambda: None
    spare.said = ""
    until(lambda: written(service, user) == DONE)


def test_it_ends_at_the_limit(service: ChatService, store: Store) -> None:
    user = store.users.ensure("ann")
    service.idle.choose(user, IdleSettings(True, 0.0, 30))
    until(lambda: service.idle.state(user).phase == "full")
    assert 30 <= store.generated.size(user).tokens < 40


@pytest.mark.parametrize("what", ["delete", "forget"])
def test_deleted_while_it_writes(service: ChatService, store: Store, order: Order, what: str) -> None:
    user = store.users.ensure("ann")
    enough = threading.Event()
    order.before = lambda: enough.set() if len(order.began) > 12 else None
    service.idle.choose(user, AT_ONCE)
    enough.wait()
    if what == "delete":
        assert service.idle.delete(user)
        service.idle.choose(user, IdleSettings(False))
    else:
        assert service.forget_user(user)
        assert service.idle.state(user).phase == "off"
    until(lambda: service.idle._writer is None)
    service.idle.delete(user)
    assert store.generated.size(user).texts == 0


def test_users_take_turns(service: ChatService, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()
    monkeypatch.setattr(
        "hierchat.chat.idle_generation.time", SimpleNamespace(monotonic=lambda: float(next(steps)))
    )
    monkeypatch.setattr("hierchat.chat.idle_generation.TURN_SECONDS", 25.0)
    users = [store.users.ensure(name) for name in ("ann", "ben")]
    seen: list[int] = []
    keep = store.generated.keep
    monkeypatch.setattr(
        store.generated, "keep", lambda user, *a, **n: seen.append(user) or keep(user, *a, **n)
    )
    for user in users:
        store.users.set_idle_settings(user, AT_ONCE)
    service.idle.wake()
    until(lambda: all(written(service, user) == DONE for user in users))
    changes = sum(one != other for one, other in pairwise(seen))
    assert changes > 2


@pytest.mark.parametrize(
    ("battery", "others", "said"),
    [
        (None, 0.0, ""),
        (None, 0.9, BUSY),
        (True, 0.0, ""),
        (False, 0.0, ON_BATTERY),
        ("unknown", 0.0, ON_BATTERY),
    ],
)
def test_when_a_machine_has_time_to_spare(
    monkeypatch: pytest.MonkeyPatch, battery: Any, others: float, said: str
) -> None:
    """Of its own use it takes no notice."""
    now = {"seconds": 100.0, "mine": 0.0, "others": 0.0}

    class Times(tuple):
        idle, iowait, guest, guest_nice = 0.0, 0.0, 1.0, 0.0

    class Process:
        def cpu_times(self) -> Any:
            return type("Mine", (), {"user": now["mine"], "system": 0.0})

    plugged = {"unknown": None}.get(battery, battery)
    found = None if battery is None else type("Battery", (), {"power_plugged": plugged})
    monkeypatch.setattr(machines.time, "monotonic", lambda: now["seconds"])
    monkeypatch.setattr(machines.psutil, "Process", Process)
    monkeypatch.setattr(machines.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(machines.psutil, "cpu_times", lambda: Times((now["mine"] + now["others"], 1.0)))
    monkeypatch.setattr(machines.psutil, "sensors_battery", lambda: found, raising=False)
    machine = Machine()
    for _ in range(3):
        now["seconds"] += 5.0
        now["mine"] += 10.0
        now["others"] += 5.0 * others
        assert machine.trouble() == said
    now["others"] += 100.0
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
    runner = writing.model.local.runner
    forward = runner.forward
    runner.forward = lambda segments, **named: together.append(len(segments)) or forward(segments, **named)
    made = writing.write(ASKED)
    runner.forward = forward
    assert max(together) == made.streams == 3  # the fourth place is that of a chat
    assert writing.texts() == plain(writing)
    assert made.tokens == writing.store.generated.size(writing.user).tokens
    assert made.replies == sum(map(len, writing.texts().values()))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("steps", [6, 17])
def test_interrupted_again_and_again_it_comes_to_the_same(
    writing: Writing, tmp_path: Path, steps: int, keep: bool
) -> None:
    """With and without what was half there: a killed process keeps less."""
    writing.write(ASKED)
    with Store.open(tmp_path / "again.db") as store:
        again = Writing(store, writing.model)
        for _ in range(300):
            numbers = count(1)
            before = again.texts()
            again.write(ASKED, lambda numbers=numbers: next(numbers) < steps + (0 if keep else 40), keep=keep)
            if again.texts() == writing.texts():
                break
            assert keep or again.texts() != before
        assert again.texts() == writing.texts()
        assert (
            again.store.generated.size(again.user).tokens == writing.store.generated.size(writing.user).tokens
        )


def test_half_replies_are_kept_on_the_way(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_generation, "KEEP_SECONDS", 0.0)
    numbers = count(1)
    writing.write(ASKED, lambda: next(numbers) < 6, keep=False)
    halves = [
        text
        for one in ASKED
        for text in writing.store.generated.texts(writing.user, writing.model.model_key, one.key)
        if not text.done
    ]
    assert len(halves) == 3
    assert all(text.ids for text in halves)


def test_no_forward_begins_once_it_is_stopped(writing: Writing) -> None:
    """Nor does it leave anything in slots, which are the first to be taken then."""
    stop = threading.Event()
    runner, computed = writing.model.local.runner, []
    forward = runner.forward

    def stopping(segments, **named):
        computed.append(len(segments))
        if len(computed) == 5:
            stop.set()
        return forward(segments, **named)

    runner.forward = stopping
    made = writing.writer(stop)
    made.write(ASKED, lambda: True)
    assert len(computed) == 5
    assert writing.model.local.sequence.tokens == []


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


ROOT = Path(__file__).parents[2]


def test_killed_in_the_middle_and_taken_up(tmp_path: Path, writing: Writing) -> None:
    path = tmp_path / "killed.db"
    program = [sys.executable, "-m", "tests.idle.killed", str(path)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            tokens, replies = map(int, line.split())
            if replies >= 2 and tokens > 50:  # some replies are finished, others are half there
                break
    finally:
        process.kill()
        process.wait()
    writing.write(ASKED)
    with Store.open(path) as store:
        again = Writing(store, writing.model)
        whole = writing.texts()
        kept = again.texts()
        assert 2 <= sum(map(len, kept.values())) < sum(map(len, whole.values()))
        assert all(replies == whole[key][: len(replies)] for key, replies in kept.items())
        assert (
            again.store.generated.size(again.user).tokens >= tokens - 3
        )  # but for the step in which it was killed
        before = again.store.generated.size(again.user).tokens
        made = again.write(ASKED)
        assert again.texts() == whole
        assert made.tokens == again.store.generated.size(again.user).tokens - before


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command over a tiny model; its exit code."""
    monkeypatch.setattr("hierchat.runtime.loading.load_served_model", lambda entry, *a, **n: make_served())

    def run(*flags: str) -> int:
        return main(["learn", "--db", str(tmp_path / "chat.db"), *flags])

    return run


def test_it_writes_and_goes_on_where_it_was_stopped(
    learn: Any, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user = store.users.ensure(LOCAL_USER)
    steps = [0]
    step = idle_generation.Writer._step

    def interrupted(made: idle_generation.Writer) -> None:
        steps[0] += 1
        if steps[0] == 15:
            os.kill(os.getpid(), signal.SIGINT)
        step(made)

    monkeypatch.setattr(idle_generation.Writer, "_step", interrupted)
    assert learn("--minutes", "100") == 0
    assert steps[0] <= 16
    kept = store.generated.size(user)
    assert kept.tokens > 0
    assert store.generated.replies(user, "key of tiny") != DONE
    assert f"It has written {kept.tokens:,} tokens by now" in capsys.readouterr().out
    assert learn() == 0
    assert store.generated.replies(user, "key of tiny") == DONE


def test_what_it_refuses(learn: Any, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    user = store.users.ensure("ann")
    assert learn("--user", "nobody") == 1
    assert "There is no user 'nobody'" in capsys.readouterr().err
    assert "nobody" not in store.users.ids()
    store.users.choose(user, drafts_from="chat")
    assert learn("--user", "ann") == 1
    assert "was chosen in Settings" in capsys.readouterr().err
    store.users.choose(user, drafts_from="all")
    store.users.set_idle_settings(user, IdleSettings(False, 10.0, 1))
    assert learn("--user", "ann") == 0
    assert 1 <= store.generated.size(user).tokens < 10
    assert learn("--user", "ann") == 1
    assert "as much for itself as is allowed" in capsys.readouterr().err
    assert learn("--minutes", "0") == 2
