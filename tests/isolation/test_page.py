"""Through the page: every listener with the ids of another user, another's page, files, the search."""

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page.tab import Stream
from hierchat.access import limits
from hierchat.access.files import Files, files
from hierchat.chat.in_progress import InProgress, ReplyInProgress
from hierchat.page.page_sessions import KeptFiles
from hierchat.page.screen import Attached
from tests.isolation.conftest import Place, served, writing
from tests.isolation.visitor import Visitor, defaults
from tests.testing.raw import ask
from tests.testing.secrets import SECRET, Secrets, fill, rows_of

OTHERS = {"ann": "ben", "ben": "ann"}


@dataclass
class Victim:
    """Somebody with an open page and a secret in all that it can hold."""

    visitor: Visitor
    secrets: Secrets
    key: str
    """Of a file that is attached to the next message."""
    ticket: str
    """Of a file that waits to be fetched."""
    numbers: list[int]
    """Of a reply in progress, and of a message that waits."""


@pytest.fixture
def victim(place: Place) -> Iterator[Victim]:
    with filled(place, "ann") as victim:
        yield victim


@contextmanager
def filled(place: Place, name: str) -> Iterator[Victim]:
    visitor = Visitor(place.address, name, place.visitors[name].password)
    held = fill(place.store, name)
    visitor.open()
    visitor.act("hc_open", {"id": held.ids["chat"]})
    key = secrets.token_hex(16)
    data = base64.b64encode(f"unsent {SECRET}".encode()).decode()
    attached = {"key": key, "chat": held.ids["chat"], "name": f"{SECRET}.txt", "size": 9, "data": data}
    assert SECRET in visitor.act("hc_attached", attached)
    path = files.place("export.json")
    path.write_text(SECRET)
    ticket = files.hold(path, name)
    replies = writing(place.service, held)
    yield Victim(visitor, held, key, ticket, [reply.number for reply in replies])
    place.service.in_progress.end(held.user)
    place.service.forget_user(held.user)


def attacks(victim: Victim, *, log_in: str | None) -> Iterator[dict[str, Any]]:
    """Event data that names something of another's."""
    usual = {"on": True, "tickets": [victim.ticket], "key": victim.key, "name": "x", "size": 1}
    usual |= {"pasted": "x", "title": "x"}
    for id in sorted({*victim.secrets.ids.values(), victim.secrets.user, *victim.numbers}):
        yield usual | {"id": id, "text": str(id), "chat": id}
    chat = victim.secrets.ids["chat"]
    kept = [{"key": victim.key, "chat": chat, "name": "x"}]
    for text in (victim.key, json.dumps(kept), log_in or "x", "settings", "json", "markdown"):
        yield usual | {"id": chat, "text": text, "chat": chat}


def values(config: dict[str, Any], listener: dict[str, Any], secrets: Secrets) -> list[Any]:
    """What the page sends along, with the other's chat as the open one, and the other's preset as the chosen one."""
    named = {one["id"]: one["props"].get("elem_id") for one in config["components"]}
    instead = {"hc-bus": str(secrets.ids["chat"]), "hc-preset": secrets.ids["preset"], "hc-box": "Hello"}
    found = zip(listener["inputs"], defaults(config, listener), strict=True)
    return [instead.get(named[id], value) for id, value in found]


def understood(said: str) -> bool:
    """Whether a handler did what it does, or refused it in a sentence."""
    failed = ("did not expect", "Change it in Chat settings")
    return '"data":' in said and not any(words in said for words in failed)


def every_listener(place: Place, attacker: Visitor, victim: Victim, *, owner: bool) -> dict[str, list[str]]:
    """All that the server answers, by listener."""
    mine = next(one for one in place.log_ins.connected() if one.name == victim.visitor.name)
    config = attacker.config()
    answers: dict[str, list[str]] = {}
    for listener in filter(lambda one: one["backend_fn"], config["dependencies"]):
        events = {target[1] for target in listener["targets"]}
        if owner and any(event.startswith("hc_model") for event in events):
            continue  # the owner may: and without a model, no later attack would get a reply
        taken = [*attacks(victim, log_in=None if owner else mine.id)]
        if not any(event.startswith("hc_") for event in events):
            taken = taken[:1]  # it takes no event data
        sent = values(config, listener, victim.secrets)
        said = attacker.calls(listener["id"], [(sent, data) for data in taken])
        answers[f"{listener['id']} {sorted(events)}"] = said
    return answers


@pytest.mark.parametrize("name", ["ann", "ben"])
def test_no_listener_gives_or_changes_anything_of_another_user(tmp_path: Path, name: str) -> None:
    """In a database of its own: as long as ids are small, those of several tables are the same, and one attack tries
    all of them."""
    with served(tmp_path) as place, filled(place, name) as victim:
        attacked_by(place, victim, OTHERS[name])


def attacked_by(place: Place, victim: Victim, name: str) -> None:
    attacker = Visitor(place.address, name, place.visitors[name].password)
    opened = attacker.open()
    assert SECRET not in opened
    theirs = f"/?c={victim.secrets.ids['chat']}"
    assert SECRET in ask(place.address, "GET", theirs, victim.visitor.headers).text
    assert SECRET not in ask(place.address, "GET", theirs, attacker.headers).text
    before = rows_of(place.store, victim.secrets.user)
    answers = every_listener(place, attacker, victim, owner=name == "ann")
    assert len(answers) > 55
    assert [listener for listener, said in answers.items() if SECRET in str(said)] == []
    broken = [listener for listener, said in answers.items() if not any(map(understood, said))]
    assert broken == []  # each was really asked
    assert rows_of(place.store, victim.secrets.user) == before
    user = victim.secrets.user
    assert [one.number for one in place.service.in_progress.all_of(user)] == victim.numbers[:1]
    assert [one.number for one in place.service.in_progress.waiting(user)] == victim.numbers[1:]
    assert SECRET in files.take(victim.ticket, victim.visitor.name).read_text()
    shown = victim.visitor.act("hc_more", {})
    assert SECRET in shown  # still logged in, and the page is still theirs
    other = place.store.users.ids()[name]
    assert SECRET not in str(rows_of(place.store, other))  # nothing went into what is the attacker's either


def anybodys(db: Any, user_id: int, id: int) -> dict[str, Any]:
    """A conversation, for whoever names it."""
    return next(db.query("SELECT * FROM conversations WHERE id = ?", [id]))


def anybodys_message(db: Any, user_id: int, id: int) -> dict[str, Any]:
    return next(db.query("SELECT * FROM messages WHERE id = ?", [id]))


def anybodys_file(self: KeptFiles, user_id: int, key: str) -> Attached | None:
    return next((file for (_, one), file in self._files.items() if one == key), None)


def anybodys_next(self: InProgress, user_id: int, number: int) -> ReplyInProgress | None:
    return next((one for many in self._waiting.values() for one in many if one.number == number), None)


def anybodys_ticket(self: Files, ticket: str, owner: str) -> Path:
    return self._held.pop(ticket).path


CONVERSATIONS = {
    f"store.{module}.owned_conversation": anybodys
    for module in ("chats", "messages", "repository", "documents")
}
MESSAGES = {"store.messages.owned_message": anybodys_message, "store.messages.owned_conversation": anybodys}


@pytest.mark.parametrize(
    ("without", "event", "what"),
    [
        (CONVERSATIONS, "hc_open", "chat"),
        (MESSAGES, "hc_edit_reply", "reply"),
        ({"page.page_sessions.KeptFiles.find": anybodys_file}, "hc_kept", "key"),
        ({"chat.in_progress.InProgress.take_out": anybodys_next}, "hc_next_edit", "number"),
        ({"access.files.Files.take": anybodys_ticket}, "ticket", ""),
    ],
    ids=["conversations", "messages", "attached files", "messages that wait", "exports"],
)
def test_the_attacks_are_real_ones(
    place: Place, victim: Victim, monkeypatch: pytest.MonkeyPatch, without: dict[str, Any], event: str, what: str
) -> None:  # fmt: skip
    """With a defence taken away, each of them gives the secret, or changes what is another's; with it, none does."""

    def attacked() -> bool:
        ben = Visitor(place.address, "ben", place.visitors["ben"].password)
        if event == "ticket":
            return SECRET in ben.ask("GET", f"/transfer/out/{victim.ticket}").text
        ben.open()
        kept = [{"key": victim.key, "chat": 0, "name": "x"}]
        texts = {"key": json.dumps(kept), "number": str(victim.numbers[1])}
        before = rows_of(place.store, victim.secrets.user)
        said = ben.act(event, {"id": victim.secrets.ids.get(what, 0), "text": texts.get(what, "")})
        return SECRET in said or rows_of(place.store, victim.secrets.user) != before

    assert not attacked()
    for defence, nothing in without.items():
        monkeypatch.setattr(f"hierchat.{defence}", nothing)
    assert attacked()


def uses(hash: str) -> dict[str, tuple[str, str, object]]:
    """Every way in which a page's hash is given to Gradio."""
    event = {"fn_index": 0, "data": [], "session_hash": hash, "trigger_id": None}
    twice = f"session_hash=mine&session_hash={hash}"
    return {
        "stream": ("GET", f"/gradio_api/queue/data?session_hash={hash}", None),
        "stream, encoded": ("GET", f"/gradio_api/queue/data?session_%68ash={hash}", None),
        "stream, twice": ("GET", f"/gradio_api/queue/data?{twice}", None),
        "stream of a call": ("GET", f"/gradio_api/call/x/{hash}", None),
        "stream of a call, v2": ("GET", f"/gradio_api/call/v2/x/{hash}", None),
        "screen": ("GET", f"/gradio_api/page/{hash}", None),
        "screen, encoded": ("GET", f"/gradio_api/page/%{ord(hash[0]):x}{hash[1:]}", None),
        "join": ("POST", "/gradio_api/queue/join", event),
        "run": ("POST", "/gradio_api/run/predict", event),
        "run by a name": ("POST", "/gradio_api/run/load", event),
        "api": ("POST", "/gradio_api/api/predict", event),
        "cancel": ("POST", "/gradio_api/cancel", {"session_hash": hash, "fn_index": 0, "event_id": "x"}),
        "server": (
            "POST", "/gradio_api/component_server",
            {"session_hash": hash, "data": [], "component_id": 1, "fn_name": "x"},
        ),
        "link": ("GET", f"/gradio_api/deep_link?session_hash={hash}", None),
        "playlist": ("GET", f"/gradio_api/stream/{hash}/1/1/playlist.m3u8", None),
    }  # fmt: skip


def test_another_s_page_is_closed_to_whoever_knows_its_number(place: Place) -> None:
    """And a page without a number is nobody's: all that send none would share one."""
    mine, other = (Visitor(place.address, name, place.visitors[name].password) for name in ("ann", "ben"))
    mine.open()
    for way, used in uses(mine.hash).items():
        answer = other.ask(*used, read=300)
        assert answer.status in (403, 404), (way, answer.text)
        assert answer.text in (limits._OTHERS, limits._CLOSED), way
        assert mine.ask("GET", f"/gradio_api/page/{mine.hash}", read=5).text == "id: 1", way
    event = {"fn_index": 0, "data": []}
    for body in (event, *(event | {"session_hash": hash} for hash in (None, "", 1)), [], "x"):
        assert other.ask("POST", "/gradio_api/run/predict", body).status in (400, 403), body


def begun(place: Place, word: str) -> tuple[Visitor, Visitor]:
    """Ann, whose page waits for an answer that holds the word, and Ben."""
    ann, ben = (Visitor(place.address, name, place.visitors[name].password) for name in ("ann", "ben"))
    fill(place.store, "ann", word)
    ann.open()
    config = ann.config()
    more = next(one for one in config["dependencies"] if any(t[1] == "hc_more" for t in one["targets"]))
    assert ann.begin(more["id"], defaults(config, more), {}).status == 200
    return ann, ben


def test_the_events_of_another_s_page_are_not_told_and_it_does_not_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door stands before Gradio, and the page's own stream is its user's alone even where that is left open."""
    ann, ben = begun(place, "glockenspielist")
    screen = ben.ask("GET", f"/gradio_api/page/{ann.hash}", read=2000)
    assert (screen.status, "glockenspielist" in screen.text) == (403, False)
    monkeypatch.setattr(limits.PageOwnerMiddleware, "_is_own", lambda self, hash, user: True)
    screen = ben.ask("GET", f"/gradio_api/page/{ann.hash}", read=2000)
    assert (screen.status, "glockenspielist" in screen.text) == (404, False)
    # That attack is a real one.
    monkeypatch.setattr("hierchat.page.stream.USER", "nobody", raising=True)
    monkeypatch.setattr("hierchat.page.stream.LOCAL_USER", "ann")
    stream = Stream(ben._http, ann.hash)
    stream.close()
    assert "glockenspielist" in "".join(stream.shows.values())


def test_files_on_their_way_out_are_their_user_s_and_gradio_s_own_routes_serve_none(
    place: Place, victim: Victim
) -> None:
    """Neither the database nor what waits to be fetched, and nothing can be laid where they would serve it."""
    path = files._held[victim.ticket].path
    for who in ("ann", "ben"):
        for wanted in (place.store.path, f"{place.store.path}-wal", path, "/etc/hostname"):
            for route in ("file=", "file/", "stream/", "proxy=file://"):
                answer = place.visitors[who].ask("GET", f"/gradio_api/{route}{wanted}", read=4000)
                assert answer.status == 404
                assert SECRET not in answer.text
        assert place.visitors[who].ask("POST", "/gradio_api/upload", {}).status == 404
    answer = place.visitors["ben"].ask("GET", f"/transfer/out/{victim.ticket}")
    assert (answer.status, SECRET in answer.text) == (404, False)
    assert SECRET in victim.visitor.ask("GET", f"/transfer/out/{victim.ticket}").text
