"""Replies as they are written, what is known of them afterwards, and what a killed writer leaves."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import NotFound, Store, StoreError
from hierchat.store.errors import DatabaseUnwritable
from hierchat.store.records import NewTurn, Origin, SourceCount, SourceSpan, TurnFigures, Whereabouts
from tests.testing.deleting import delete_for_good
from tests.testing.stores import chat_of, child, last_replies, new_store, replied

TURN = NewTurn("tiny", "k1", MappingProxyType({"temperature": 0.7, "stop": ["\n"]}), 2**63 - 1, True)
FIGURES = TurnFigures(
    prompt_tokens=9, seconds=0.5, first_token_seconds=0.1, forwards=2, tokens_per_forward=2.0, proposed=6, accepted=2,
    sources=MappingProxyType({"context": SourceCount(4, 0), "history": SourceCount(2, 2)}),
    baseline_tokens_per_second=4.0, baseline="measured", speedup=2.0, finish="stop", forward_ms=0.4, verify_ms=0.03,
    read_ms=7.0, prompt_read=5, stop_string="END", plan=(("small", 4), ("middle", 9)),
)  # fmt: skip


def reply(store: Store, user: int, turn: NewTurn = TURN) -> int:
    return replied(store, user, text="", asked="q", tokens=[], turn=turn, state="writing")


def test_a_reply_from_first_to_last_and_taken_up_again(store: Store, user: int) -> None:
    message = reply(store, user)
    begun = store.messages.get(user, message)
    assert (begun.text, begun.state) == ("", "writing")
    store.replies.append(message, "one two", [5, -1], ["target", "history"])
    turn = store.replies.turn(user, message)
    assert (turn.begun, turn.reply_tokens, turn.figures) == (TURN, 2, None)
    with pytest.raises(StoreError, match="still being written"):
        store.replies.resume(user, message)
    store.replies.append(message, "one two three four", [2**31 - 1, 0], ["history", "target"])
    store.replies.finish(message, "one two three", "stopped", FIGURES)
    ended = store.messages.get(user, message)
    assert (ended.text, ended.state) == ("one two three", "stopped")
    turn = store.replies.turn(user, message)
    assert (turn.begun, turn.reply_tokens, turn.figures) == (TURN, 4, FIGURES)
    assert store.replies.tokens(user, message) == [5, -1, 2**31 - 1, 0]
    spans = [SourceSpan(0, 1, "target"), SourceSpan(1, 2, "history"), SourceSpan(3, 1, "target")]
    assert store.replies.spans(user, message) == spans
    question = store.messages.get(user, message).parent_id
    assert store.replies.turn(user, question) is None
    assert store.replies.tokens(user, question) == store.replies.spans(user, question) == []
    store.replies.resume(user, message)
    assert store.messages.get(user, message).state == "writing"
    turn = store.replies.turn(user, message)
    assert (turn.begun, turn.figures, turn.reply_tokens) == (TURN, None, 4)
    store.replies.append(message, "one two three fourteen", [3, 4], ["target", "history"])
    store.replies.finish(message, "one two three fourteen", "complete", FIGURES)
    assert store.replies.tokens(user, message) == [5, -1, 2**31 - 1, 0, 3, 4]
    spans[2:] = [SourceSpan(3, 2, "target"), SourceSpan(5, 1, "history")]
    assert store.replies.spans(user, message) == spans
    assert [c.snippet for c in store.chats.find(user, "fourteen")] == ["one two three \x02fourteen\x03"]
    assert store.chats.find(user, "four") != []  # the beginning of a word


kinds = st.sampled_from([Origin(), Origin("context", 3, 0.5), Origin("history", 2, 1.0, 7)])


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(kinds, st.none() | st.integers(-3, 3), st.integers(1, 4)), max_size=8),
    cuts=st.sets(st.integers(0, 32)),
)
def test_spans_hold_where_each_token_came_from(
    shared: Store, runs: list[tuple[Origin, int | None, int]], cuts: set[int]
) -> None:
    """However it was cut: a run goes on as long as its places do."""
    user = shared.users.ensure("origins")
    message = reply(shared, user)
    origins = [
        replace(kind, place=None if place is None else place + number)
        for kind, place, length in runs
        for number in range(length)
    ]
    for start, end in pairwise([0, *sorted(cuts), 40]):
        tokens = list(range(len(origins)))[start:end]
        shared.replies.append(message, "text", tokens, ["history"] * len(tokens), origins[start:end])
    spans = shared.replies.spans(user, message)
    found = [
        replace(span.origin, place=None if span.origin.place is None else span.origin.place + number)
        for span in spans
        for number in range(span.length)
    ]
    assert found == origins
    assert not any(after.origin.goes_on(before.origin, before.length) for before, after in pairwise(spans))


def test_the_chance_of_a_span_is_the_mean_of_its_tokens(store: Store, user: int) -> None:
    message = reply(store, user)
    found = [Origin("history", 2, chance, 7, place=place) for place, chance in enumerate((0.9, 0.6, 0.3))]
    store.replies.append(message, "text", [1, 2], ["history"] * 2, found[:2])
    store.replies.append(message, "text", [3], ["history"], found[2:])
    (span,) = store.replies.spans(user, message)
    assert (span.length, span.origin.chance) == (3, pytest.approx(0.6))


def test_where_messages_stand(store: Store, user: int) -> None:
    mine, theirs = reply(store, user), reply(store, store.users.ensure("bob"))
    place = chat_of(store, user, mine)
    assert store.messages.whereabouts(user, [mine, theirs, 999]) == {
        mine: Whereabouts(place, "q", "assistant")
    }
    delete_for_good(store, user, place)
    assert store.messages.whereabouts(user, [mine]) == {}


def test_only_a_reply_begun_here_can_be_written(store: Store, user: int, path: Path) -> None:
    message = reply(store, user)
    with pytest.raises(ValueError, match="2 tokens but 1 sources"):
        store.replies.append(message, "no", [1, 2], ["target"])
    with pytest.raises(OverflowError):
        store.replies.append(message, "no", [2**31], ["target"])
    assert store.messages.get(user, message).text == ""
    store.replies.finish(message, "", "complete", FIGURES)
    with pytest.raises(NotFound):
        store.replies.append(message, "more", [1], ["target"])
    with pytest.raises(NotFound):
        store.replies.finish(message, "more", "complete", FIGURES)
    running = reply(store, user)
    with Store.open(path) as other, pytest.raises(NotFound):
        other.replies.append(running, "mine now", [1], ["target"])


def test_closing_interrupts_what_this_store_was_writing(store: Store, user: int, path: Path) -> None:
    """What it had taken up again has no figures of a part."""
    mine = reply(store, user)
    with Store.open(path) as other:
        theirs, done, taken_up = reply(other, user), replied(other, user), replied(other, user)
        other.replies.resume(user, taken_up)
    states = [store.messages.get(user, id).state for id in (mine, theirs, done, taken_up)]
    assert states == ["writing", "interrupted", "complete", "interrupted"]
    assert store.replies.turn(user, done).figures
    assert store.replies.turn(user, taken_up).figures is None


def test_a_reply_whose_end_could_not_be_written_counts_as_interrupted(store: Store, user: int) -> None:
    message = reply(store, user)
    conversation = chat_of(store, user, message)
    store.connection._idle[-1].execute("PRAGMA query_only = ON")
    with pytest.raises(DatabaseUnwritable):
        store.replies.finish(message, "ab", "complete", FIGURES)
    assert store.messages.get(user, message).state == "interrupted"
    assert store.messages.path(user, conversation)[-1].state == "interrupted"
    store.connection._idle[-1].execute("PRAGMA query_only = OFF")
    state = store.connection._idle[-1].execute("SELECT state FROM messages WHERE id = ?", [message])
    assert state.fetchone() == ("writing",)
    store.chats.rename(user, conversation, "whoever writes next")
    state = store.connection._idle[-1].execute("SELECT state FROM messages WHERE id = ?", [message])
    assert state.fetchone() == ("interrupted",)


def test_empty_conversations_that_a_crash_left_go_after_a_day(store: Store, user: int, path: Path) -> None:
    old, new, named = (store.chats.create(user, title) for title in ("", "", "kept"))
    held = chat_of(store, user, reply(store, user))
    with store.connection.write() as db:
        db.execute("UPDATE conversations SET created_at = 0 WHERE id IN (?, ?, ?)", [old, named, held])
    with Store.open(path):
        assert {c.id for c in store.chats.find(user)} == {held, new, named}


def counts(path: Path, say: Callable[..., None]) -> None:
    """Write a reply of numbers, and say each number only once the append has returned: it is acknowledged."""
    store = new_store(path)
    message = replied(store, store.users.ensure("ann"), text="", asked="count", tokens=[], state="writing")
    say(message)
    text = ""
    for number in range(1_000_000):
        text += f"{number} "
        store.replies.append(message, text, [number], ["target" if number % 3 else "history"])
        say(number)


@pytest.mark.parametrize("acknowledged", [1, 50, 123])
def test_a_killed_writer_loses_only_what_was_not_acknowledged(path: Path, acknowledged: int) -> None:
    with child(partial(counts, path)) as writer:
        reply = int(writer.said.readline())
        for _ in range(acknowledged):
            writer.said.readline()
        with Store.open(path) as store:  # it still runs, and keeps its reply
            user = store.users.ensure("ann")
            store.replies.recover()
            assert store.messages.get(user, reply).state == "writing"
            acknowledged += len(writer.kill())
            store.replies.recover()
            message = store.messages.get(user, reply)
            tokens = store.replies.tokens(user, reply)
            assert message.state == "interrupted"
            assert tokens == list(range(len(tokens)))
            assert len(tokens) in (acknowledged, acknowledged + 1)
            assert message.text == "".join(f"{number} " for number in tokens)
            sources = [span.source for span in store.replies.spans(user, reply) for _ in range(span.length)]
            assert sources == ["target" if number % 3 else "history" for number in tokens]
            assert last_replies(store, user, "k", 1) == [reply]
            (found,) = store.chats.find(user, "count")
            assert reply in [one.id for one in store.messages.path(user, found.id)]
            assert store.chats.find(user, "0")[0].id == message.conversation_id


ROOT = Path(__file__).parents[2]
KINDS = ("kill", "errors", "log", "power")


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("cc"), reason="needs Linux and cc"
)
def test_nothing_that_was_told_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "counts.json"
    short = ("--rounds", "1", "--seconds", "0.5", "--cuts", "8")
    command = [sys.executable, "-m", "tests.faults", *KINDS, *short, "--json", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(out.read_text())["counts"]
    assert [kind for kind in KINDS if counts[kind]["problems"]] == []
    assert sum(count["kills"] for count in counts.values()) == len(KINDS) + 1  # two of "power"
    assert counts["power"]["cuts"] == 8
    assert sum(count["told"].get("asked", 0) for count in counts.values()) > 0
