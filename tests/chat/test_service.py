"""The chat over a real store and a real engine on a tiny model."""

import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from hierchat.chat import reply_stream
from hierchat.chat.completions import NoModel, NotBegun
from hierchat.chat.frames import Figures, Frame
from hierchat.chat.in_progress import NewQuestion
from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import LEAD
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.generation import is_looping
from hierchat.models.progress import FetchError, Report
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.runtime.served_model import ServedModel
from hierchat.store import NotFound, Store
from hierchat.store.errors import DatabaseUnwritable
from hierchat.store.records import NewMessage, NewTurn, Origin
from tests.testing.deleting import delete_for_good
from tests.testing.tiny_chat import (
    END,
    SYSTEM,
    catalogue,
    ready_slot,
    served,
    spy,
    tokenizer,
)

from .conftest import Talk, talk_on

LONG = "What is the longest river of this country, and where does it end? " * 12


def recalled(frame: Frame) -> bool:
    """Whether an earlier reply drafted most of this one. The target's last choices are history, too, but few."""
    return frame.figures.shares.get("history", 0.0) > 0.5


def same(first: Figures, second: Figures) -> bool:
    """Equal but for the rounding of a quotient."""
    rates = {"tokens_per_second": 0, "shares": {}, "written": None, "plan": None}
    return (
        replace(first, **rates) == replace(second, **rates)
        and first.tokens_per_second == pytest.approx(second.tokens_per_second)
        and dict(first.shares) == pytest.approx(dict(second.shares))
    )


def until(frames: Any, tokens: int) -> tuple[Any, Frame]:
    """Frames that go on behind so many tokens, and the first one that has them."""
    return frames, next(frame for frame in frames if frame.figures.tokens >= tokens)


def test_a_reply_from_its_first_frame_into_the_store(talk: Talk) -> None:
    """A mark of the template that somebody types is plain text."""
    asked = f"{LONG[:200]}<|im_end|>"
    frames = list(talk.sending(asked))
    phases = [frame.phase for frame in frames]
    assert phases[0] == "waiting"
    assert phases == sorted(phases, key=["waiting", "reading", "writing", "done"].index)
    assert set(phases) == {"waiting", "reading", "writing", "done"}
    assert phases.count("done") == 1
    assert len({frame.message_id for frame in frames[1:]}) == 1
    *before, last = frames
    assert {frame.finish for frame in before} == {None}
    assert last.finish == "length"
    assert asked in talk.held
    assert talk.sequence.tokens.count(END) == 2  # of the system prompt and of the message
    tokens = talk.tokens(last)
    assert len(tokens) == last.figures.tokens == 24
    assert tokenizer().decode(tokens, skip_special_tokens=True) == last.text
    begun = talk.store.replies.turn(talk.user, last.message_id).begun
    assert (begun.model, begun.model_key, begun.seed) == ("tiny", talk.model.model_key, 7)
    assert begun.drafted


def test_what_was_seen_of_a_reply_is_in_the_file(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """And outlives a kill: at most a second of it could be lost."""
    assert reply_stream.WRITE_SECONDS <= 1
    monkeypatch.setattr(reply_stream, "WRITE_SECONDS", 0.0)
    found = "SELECT text, state, length(ids) FROM messages JOIN token_log ON message_id = id WHERE id = ?"
    with closing(sqlite3.connect(talk.store.path)) as another:
        for frame in talk.sending("hello"):
            if frame.phase == "writing" and frame.text:
                text, state, length = another.execute(found, [frame.message_id]).fetchone()
                assert text.startswith(frame.text)
                assert (state, length) == ("writing", 4 * frame.figures.tokens)


def test_a_drafted_reply_tells_its_figures_and_which_reply_its_runs_came_from(talk: Talk) -> None:
    first = talk.send("hello")
    last = talk.other().send("hello")
    service, figures, id = talk.service, last.figures, last.message_id
    assert same(service.figures(talk.user, id), figures)
    assert sum(figures.shares.values()) == pytest.approx(1)
    assert figures.baseline is figures.speedup is None  # too short to measure on the way
    assert 0 < figures.acceptance_rate <= 1
    assert figures.tokens_per_forward > 1

    written, mine = (talk.tokens(one) for one in (first, last))
    found = [span for span in talk.store.replies.spans(talk.user, id) if span.origin.origin_id]
    assert found
    for span in found:
        origin, place = span.origin, span.origin.place
        assert (origin.slot, origin.origin_id) == ("history", first.message_id)
        assert mine[span.start : span.start + span.length] == written[place : place + span.length]
        assert origin.matched <= place + LEAD  # the end of the prompt matched, too
        begin = max(span.start - origin.matched, 0)
        assert mine[begin : span.start] == written[place - (span.start - begin) : place]
        assert 0 <= origin.chance <= 1

    def runs() -> list[Any]:
        return [run for run in service.runs(talk.user, id) if run.origin.origin_id]

    place = (talk.conversation, "hello", "assistant")
    for run in runs():
        assert (run.there.conversation_id, run.there.title, run.there.role) == place
        assert run.phrase.endswith(run.text)
        assert run.phrase in first.text
    delete_for_good(talk.store, talk.user, talk.conversation)
    assert runs()
    assert all(run.gone and run.there is None for run in runs())
    service.slot.model = replace(talk.model, model_key="another")
    assert service.runs(talk.user, id) == []  # its tokens cannot be told without the model that wrote them


def test_a_run_of_this_chat_leads_to_the_newest_message_before_that_holds_it(talk: Talk) -> None:
    store = talk.store
    parent = None
    ids = []
    for text in ("the river", "the river, the end", "no"):
        parent = store.messages.add(talk.user, talk.conversation, NewMessage(parent, text))
        ids.append(parent)
    turn = NewTurn("tiny", talk.model.model_key, {}, 0, True)
    reply = store.replies.begin(talk.user, talk.conversation, parent, turn)
    tokens = talk.model.prompts.tokens("the end")
    found = [
        Origin("context", number, 0.5, place=place)
        for number, place in enumerate([-9, *range(5, 4 + len(tokens))])
    ]
    store.replies.append(reply, "the end", tokens, ["context"] * len(tokens), found)
    first, *others = talk.service.runs(talk.user, reply)
    assert first.origin.origin_id == ids[1]
    assert first.there.conversation_id == talk.conversation
    assert all(run.there is None for run in others)  # of this reply itself


# Turns and branches


def test_the_next_turn_reads_only_what_is_new(talk: Talk) -> None:
    """It stands below the last, and below a question that nobody answered."""
    first = talk.send(LONG[:200])
    read: list[int] = []
    kept: list[int] = []
    spy(talk.sequence, "read", lambda tokens, hidden: read.append(len(tokens)))
    spy(talk.sequence, "rollback", kept.append)
    second = talk.send("more", first.message_id)
    assert second.finish == "length"
    assert kept[0] == first.context_tokens - 1  # all that was committed
    assert sum(read) == second.prompt_tokens - 1 - kept[0]
    assert sum(read) < first.prompt_tokens
    begun = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    assert talk.held.startswith(f"{begun}{LONG[:200]}<|im_end|>\n<|im_start|>assistant\n")
    assert "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n" in talk.held
    question = talk.store.messages.add(talk.user, talk.conversation, NewMessage(None, "never answered"))
    last = talk.send("and this?", question)
    assert [message.text for message in talk.messages()] == ["never answered", "and this?", last.text]
    assert talk.held.startswith(f"{begun}never answered<|im_end|>\n<|im_start|>user\nand this?<|im_end|>")


def test_the_same_seed_wants_the_same_precision(store: Store) -> None:
    talk = talk_on(store, ready_slot(lambda name, _: replace(served(name), activations="int16")))
    first = talk.send("hello")
    question, _ = talk.messages()
    assert talk.store.replies.turn(talk.user, first.message_id).begun.activations == "int16"
    again = {"seed_of": first.message_id, "settings": GenerationSettings(temperature=1.0, max_new_tokens=4)}
    frames = list(talk.service.regenerate(talk.user, question.id, stop=threading.Event(), **again))
    assert frames[-1].text == first.text[: len(frames[-1].text)]
    other = talk_on(store, ready_slot(lambda name, _: replace(served(name), activations="int8")))
    with pytest.raises(NotBegun, match="int16 activations wrote this reply, and tiny computes with int8"):
        list(other.service.regenerate(talk.user, question.id, stop=threading.Event(), **again))


# History


def test_what_is_deleted_does_not_draft_unless_it_is_taken_back(talk: Talk) -> None:
    talk.send("hello")
    talk.store.chats.hide(talk.user, talk.conversation)
    second = talk.other()
    assert not recalled(second.send("hello"))
    with pytest.raises(NotFound):
        talk.send("more")
    second.store.chats.hide(second.user, second.conversation)
    talk.store.chats.restore(talk.user, talk.conversation)
    third = talk.other()
    assert recalled(third.send("hello"))
    for one in (talk, third):
        delete_for_good(one.store, one.user, one.conversation)
    assert not recalled(talk.other().send("hello"))


def goes_on(talk: Talk, below: int) -> bool:
    """Whether the chat can be talked in below this message."""
    return talk.send("go on", below, max_new_tokens=4).finish == "length"


# Stop


def test_stop_while_the_prompt_is_read(talk: Talk) -> None:
    read: list[int] = []

    def reading(tokens: Sequence[int], hidden: bool) -> None:
        if not read:
            talk.stop.set()
        read.append(len(tokens))

    spy(talk.sequence, "read", reading)
    last = talk.send(LONG)
    assert (last.phase, last.finish, last.text) == ("done", "stopped", "")
    assert last.prompt_read < last.prompt_tokens
    assert sum(read) < last.prompt_tokens - 1
    assert talk.messages()[-1].state == "stopped"
    talk.stop.clear()
    assert goes_on(talk, last.message_id)


@pytest.mark.parametrize("leaves", [False, True])
def test_stop_while_it_is_written_or_a_reader_leaves(talk: Talk, leaves: bool) -> None:
    frames, frame = until(talk.sending("hello", max_new_tokens=200), 5)
    if leaves:
        frames.close()
    else:
        talk.stop.set()
        last = list(frames)[-1]
    reply = talk.messages()[-1]
    assert (reply.state, bool(frame.text)) == ("stopped", True)
    assert reply.text.startswith(frame.text)  # it runs ahead of its reader
    assert leaves or (last.finish, last.text) == ("stopped", reply.text)
    written = len(talk.store.replies.tokens(talk.user, reply.id))
    assert written == (written if leaves else last.figures.tokens) < 200
    assert talk.store.replies.turn(talk.user, reply.id).figures.finish == "stopped"
    talk.stop.clear()
    assert goes_on(talk, reply.id)


# Trouble


def test_without_a_model_nothing_is_asked(store: Store) -> None:
    def load(name: str, report: Report) -> ServedModel:
        raise FetchError("the cable is out")

    said = {"No model is loaded": ModelSlot(catalogue("tiny")), "the cable is out": ready_slot(load)}
    for why, slot in said.items():
        talk = talk_on(store, slot)
        with pytest.raises(NoModel, match=why):
            talk.send("hello")
        assert talk.messages() == []


def test_a_reply_whose_end_cannot_be_stored_is_not_shown_as_whole(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(message_id: int, *rest: Any) -> None:
        talk.store.connection.ended.add(message_id)  # as finish does
        raise DatabaseUnwritable("chat.db cannot be written (disk full).")

    with monkeypatch.context() as patched:
        patched.setattr(talk.store.replies, "finish", full)
        last = talk.send("hello", max_new_tokens=4)
    assert (last.finish, "disk full" in (last.notice or "")) == ("error", True)
    with talk.store.connection.write():  # there is room again
        pass
    reply = talk.messages()[-1]
    assert (reply.id, reply.state, reply.text) == (last.message_id, "interrupted", last.text)


def test_a_conversation_that_is_deleted_in_mid_reply(talk: Talk) -> None:
    frames, _ = until(talk.sending("hello", max_new_tokens=100), 5)
    delete_for_good(talk.store, talk.user, talk.conversation)
    last = list(frames)[-1]
    assert last.finish == "error"
    assert "deleted" in last.notice
    again = talk.other().send("hello")
    assert again.finish == "length"
    assert not recalled(again)


def test_a_conversation_that_is_hidden_in_mid_reply(talk: Talk) -> None:
    """It is written to its end, unseen, and could be taken back whole; but nothing of it drafts."""
    frames, _ = until(talk.sending("hello", max_new_tokens=40), 5)
    talk.store.chats.hide(talk.user, talk.conversation)
    assert list(frames)[-1].finish == "length"
    assert not recalled(talk.other().send("hello"))
    talk.store.chats.restore(talk.user, talk.conversation)
    assert talk.messages()[-1].state == "complete"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "Memory ran out"),
        (RuntimeError("CUDA error: the launch failed"), "Something went wrong that hierchat did not expect"),
    ],
)
def test_an_error_in_mid_reply(
    talk: Talk, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    whole = talk.other("bob").send("hello", max_new_tokens=40).text
    left = [None] * 4 + [error]

    def fails(*_: Any, **__: Any) -> None:
        if left and (now := left.pop(0)):
            raise now

    spy(talk.sequence, "forward", fails)
    last = talk.send("hello", max_new_tokens=40)
    reply = talk.messages()[-1]
    assert (last.phase, last.finish, last.message_id) == ("done", "error", reply.id)
    assert last.notice.startswith(said)
    if said == "Memory ran out":
        assert "context_length" in last.notice
    else:
        assert "the launch failed" in caplog.text
        assert "Traceback" in caplog.text
    assert (reply.state, reply.text) == ("interrupted", last.text)
    assert whole.startswith(last.text.rstrip("\ufffd"))
    assert len(talk.store.replies.tokens(talk.user, reply.id)) == last.figures.tokens >= 4
    assert goes_on(talk, reply.id)


# The context window


def test_a_long_conversation_drops_its_oldest_turns_whole_and_says_so(talk: Talk) -> None:
    parent, notices, left_out = None, [None], None
    while not left_out:
        last = talk.send(f"turn {len(notices)}: {LONG[:40]}", parent, max_new_tokens=8)
        assert last.finish == "length"
        parent = last.message_id
        notices.append(last.notice)
        left_out = re.match(r"The (\d+) oldest", last.notice or "")
    turns, dropped = range(1, len(notices)), int(left_out[1])
    begun = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nturn {dropped + 1}:"
    assert talk.held.startswith(begun)
    assert [f"turn {turn}:" in talk.held for turn in turns] == [turn > dropped for turn in turns]
    assert len(talk.messages()) == 2 * len(turns)  # the store forgets nothing


# Where the time goes


def test_time_counts_from_send_and_waiting_for_other_replies_is_told(talk: Talk) -> None:
    alone = talk.other().send("hello").figures
    assert alone.waited_seconds == 0
    assert alone.total_seconds >= alone.seconds
    with talk.service.slot.scheduler.turn():
        frames = talk.sending("hello")
        began = time.monotonic()
        assert [next(frames).ahead for _ in range(2)] == [1, 1]
        waited = time.monotonic() - began
    figures = list(frames)[-1].figures
    assert figures.waited_seconds > 0.5 * waited
    assert figures.total_seconds >= figures.waited_seconds + figures.seconds
    assert figures.first_token_seconds >= figures.waited_seconds
    assert same(talk.service.figures(talk.user, talk.messages()[-1].id), figures)


def test_waiting_for_the_model_to_load_is_no_waiting_for_replies(talk: Talk) -> None:
    scheduler = talk.service.slot.scheduler
    loads = scheduler.join(first=True)
    assert loads.take()
    frames = talk.sending("never mind")
    assert next(frames).phase == "waiting"
    talk.stop.set()
    assert list(frames) == []
    assert talk.messages() == []
    talk.stop.clear()
    ready = talk.service.slot.status
    frames = talk.sending("hello")
    for phase in ("compiling", "measuring", "ready"):
        talk.service.slot.status = replace(ready, phase=phase)
        assert next(frames).ahead == 0
    loads.leave()
    last = list(frames)[-1]
    figures = last.figures
    assert figures.waited_seconds == 0
    assert list(figures.loading) == ["compiling", "measuring", "ready"]
    assert 0 < sum(figures.loading.values()) <= figures.total_seconds
    assert same(talk.service.figures(talk.user, last.message_id), figures)
    question = NewQuestion(talk.conversation, None, "hello", waited=17.0)  # for the reply before it
    settings = GenerationSettings(max_new_tokens=8)
    figures = list(talk.service.send(talk.user, question, settings, talk.stop))[-1].figures
    assert figures.waited_seconds == 17
    assert figures.total_seconds > 17


# Loops


def test_a_reply_that_repeats_itself_ends_at_the_same_token_however_it_is_drafted(talk: Talk) -> None:
    asked = {"repetition_penalty": 1.1, "max_new_tokens": 250, "logit_bias": {END: -100.0, 70: 100.0}}
    whole = talk.other().send("a", **asked)
    tokens = talk.tokens(whole)
    ended = next(n for n in range(len(tokens)) if is_looping(tokens[:n]))
    assert ended == 240
    assert whole.finish == "length"  # who asks for so many tokens gets them
    last = talk.send("a", **asked, end_loops=True)
    assert (last.finish, last.figures.tokens) == ("loop", ended)
    assert talk.tokens(last) == tokens[:ended]
    prompt = talk.model.prompts.build([PromptMessage("user", "a")], 250, {END}).ids
    plain = talk.model.engine.generate(GenerationRequest(prompt, talk._settings(asked | {"end_loops": True})))
    assert [token for step in plain for token in step.tokens] == tokens[:ended]
    assert talk.store.figures.over_time(talk.user, 500).whole.replies == 1
    assert talk.messages()[-1].state == "complete"


# Continue


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"frequency_penalty": 0.4}], ids=str)
def test_a_continued_reply_is_the_one_of_a_higher_limit(talk: Talk, settings: dict[str, Any]) -> None:
    whole = talk.other().send("hello", max_new_tokens=48, **settings)
    cut = talk.send("hello", max_new_tokens=16, **settings)
    assert cut.finish == "length"
    for limit in (32, 48):
        last = talk.resume(cut.message_id, 16)
        assert (last.finish, last.message_id, last.figures.tokens) == ("length", cut.message_id, limit)
        assert last.context_tokens == last.prompt_tokens - (limit - 16) + limit
    assert last.text == whole.text
    question, reply = talk.messages()
    assert (reply.text, reply.state) == (whole.text, "complete")
    assert talk.store.replies.tokens(talk.user, reply.id) == talk.tokens(whole)
    assert sum(span.length for span in talk.store.replies.spans(talk.user, reply.id)) == 48
    stored = talk.service.figures(talk.user, reply.id)
    assert same(stored, last.figures)
    assert stored.first_token_seconds == pytest.approx(cut.figures.first_token_seconds)
    assert stored.seconds > cut.figures.seconds
    turn = talk.store.replies.turn(talk.user, reply.id)
    assert turn.figures.prompt_tokens == cut.prompt_tokens
    assert question.siblings == (question.id,)


def test_a_stop_string_that_spans_the_cut_ends_the_reply(talk: Talk) -> None:
    whole = talk.other().send("hello", max_new_tokens=40)
    tokens = talk.tokens(whole)
    decoded = [tokenizer().decode([token]) for token in tokens]
    cut_at = next(
        at for at in range(8, 30) if all("\ufffd" not in piece for piece in decoded[at - 1 : at + 1])
    )
    string = decoded[cut_at - 1] + decoded[cut_at]
    higher = talk.other().send("hello", max_new_tokens=40, stop=(string,))
    cut = talk.send("hello", max_new_tokens=cut_at, stop=(string,))
    last = talk.resume(cut.message_id, 40) if cut.finish == "length" else cut
    assert (last.finish, last.text) == (higher.finish, higher.text)
    assert last.finish == "stop"


def test_a_stopped_reply_can_be_continued_and_drafts_as_a_whole(talk: Talk) -> None:
    whole = talk.other("bob").send("hello", max_new_tokens=40)
    forwards = count()
    spy(talk.sequence, "forward", lambda *_, **__: next(forwards) == 6 and talk.stop.set())
    assert talk.send("hello", max_new_tokens=40).finish == "stopped"
    talk.stop.clear()
    reply = talk.messages()[-1]
    other = talk.other()
    other.send("hello", max_new_tokens=40)  # the history holds the reply as it was
    delete_for_good(talk.store, talk.user, other.conversation)
    frames = list(talk.service.resume(talk.user, reply.id, 40, talk.stop))
    assert frames[-1].figures.tokens == 40  # the limit is that of the whole reply
    so_far = reply.text.rstrip("\ufffd")  # half a character shows at the end alone
    assert all(frame.text.startswith(so_far) for frame in frames if frame.phase != "waiting")
    assert talk.store.messages.get(talk.user, reply.id).text == whole.text
    again = talk.other().send("hello", max_new_tokens=40)
    assert again.text == whole.text
    assert again.figures.shares["history"] > 0.8


def test_a_reply_that_a_crash_cut_off_tells_no_speed_once_continued(talk: Talk) -> None:
    cut = talk.send("hello")
    with talk.store.connection.write() as db:  # as a crash leaves it
        db.execute("UPDATE turns SET sources = NULL")
        db.execute("UPDATE messages SET state = 'interrupted' WHERE id = ?", [cut.message_id])
    last = talk.resume(cut.message_id, 24)
    stored = talk.service.figures(talk.user, cut.message_id)
    for figures in (last.figures, stored):
        assert figures.tokens == 48
        assert figures.tokens_per_second is figures.speedup is figures.acceptance_rate is None
        assert sum(figures.shares.values()) == pytest.approx(1)
    assert same(stored, last.figures)


def test_what_cannot_be_continued_says_why_and_stays(talk: Talk) -> None:
    ended = talk.send("hello", logit_bias={END: 100.0})
    assert (ended.finish, ended.text, ended.figures.tokens) == ("end", "", 1)
    with pytest.raises(NotBegun, match="come to its end"):
        talk.resume(ended.message_id, 24)
    assert goes_on(talk, ended.message_id)
    assert talk.held.count("<|im_end|>") == 4
    cut = talk.other().send("hello")
    talk.service.slot.model = replace(talk.model, model_key="another")
    with pytest.raises(NotBegun, match="tiny wrote this reply"):
        talk.resume(cut.message_id, 24)
    assert talk.store.messages.get(talk.user, cut.message_id).state == "complete"


# A full disk


def test_a_full_disk_in_mid_reply_is_told_at_once_and_mended_later(talk: Talk) -> None:
    """Also when the reply's end is to be written."""
    frames, _ = until(talk.sending("hello", max_new_tokens=400), 5)
    reply = talk.messages()[-1]
    with full():
        last = list(frames)[-1]
        assert last.finish == "error"
        assert "Free some disk space" in last.notice
        for shown in (talk.messages()[-1], talk.store.messages.get(talk.user, reply.id)):
            assert (shown.state, shown.text) == ("interrupted", last.text)
    assert goes_on(talk, reply.id)


@contextmanager
def full() -> Iterator[None]:
    """The operating system refuses this process every write to a file."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_reply_ends_where_the_context_is_full(talk: Talk) -> None:
    last = talk.send((LONG * 2)[:900], max_new_tokens=1000)
    assert last.finish == "context"
    assert last.context_tokens == last.context_limit
    assert talk.messages()[-1].state == "complete"


# The baseline of a speed-up


@pytest.mark.parametrize(
    ("times", "limit", "kind"),
    [
        ([10.0, 11.0, 12.0], 64, "measured"),
        ([10.0, 11.0, 12.0], 63, None),  # too short
        ([10.0, 40.0, 10.0], 64, None),  # they do not agree
    ],
)
def test_a_baseline_is_measured_where_forwards_agree_and_the_reply_is_long(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, times: list[float], limit: int, kind: str | None
) -> None:
    left = list(times)
    monkeypatch.setattr(talk.model.engine, "measure_vanilla", lambda settings: left.pop(0))
    frames = list(talk.sending("hello", max_new_tokens=limit))
    figures = frames[-1].figures
    assert figures.baseline == kind
    assert (figures.deserved_speedup is not None) is (kind == "measured")
    assert all(frame.figures.deserved_speedup is None for frame in frames if frame.figures.tokens < 64)
    if kind == "measured":
        assert left == []
        assert figures.baseline_tokens_per_second == pytest.approx(1000 / 11)
