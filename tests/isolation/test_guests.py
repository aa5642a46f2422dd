"""Guests have a namespace each, and nothing of it is left when their login ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hierchat.access.files import files
from hierchat.access.login_sessions import GUEST_LOGIN, LIFE_SECONDS, LoginSessions, Members, hashed
from tests.access.test_login import Clock
from tests.isolation.conftest import Place
from tests.isolation.visitor import Visitor
from tests.testing import browser as driving
from tests.testing.fake_service import make
from tests.testing.raw import ask
from tests.testing.secrets import fill
from tests.testing.waiting import until

WORD = "glockenspielist"
PASSWORD = "the guest password"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(files, "_folder", tmp_path / "transfer")
    service = make(tmp_path)
    service.script.seconds = 0
    log_ins = LoginSessions(Members(service.store, PASSWORD), clock)
    with driving.serving(service, log_ins=log_ins) as address:
        yield Place(service, address, log_ins, {})
    service.store.close()


def guest(place: Place) -> Visitor:
    return Visitor(place.address, GUEST_LOGIN, PASSWORD)


def accounts(place: Place, *names: str) -> list[Visitor]:
    """Make accounts, each with a page of theirs that is logged in; the first is the owner."""
    for name in names:
        place.store.accounts.add(name, hashed(f"the password of {name}"))
    return [Visitor(place.address, name, f"the password of {name}") for name in names]


def names(place: Place) -> list[str]:
    return [one.name for one in place.log_ins.connected()]


def left(place: Place, word: str = WORD) -> list[str]:
    """Files that hold it."""
    folder = place.store.path.parent
    return [path.name for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def written(place: Place, word: str = WORD) -> tuple[Visitor, str]:
    """A guest with a chat, a file that is attached and one that waits to be fetched."""
    visitor = guest(place)
    (name,) = set(names(place)) - {"other"}
    visitor.open()
    visitor.act("hc_example", {"text": f"Who is the {word}?"})
    fill(place.store, name, word)
    visitor.act("hc_attached", {"key": "a" * 32, "chat": 0, "name": "x", "pasted": f"a {word}"})
    path = files.place("x.json")
    path.write_text(word)
    files.hold(path, name)
    assert left(place)
    return visitor, name


def test_each_guest_has_a_namespace_of_their_own(place: Place) -> None:
    one, two = guest(place), guest(place)
    assert len(set(names(place))) == 2
    one.open()
    assert WORD in one.act("hc_example", {"text": f"Who is the {WORD}?"})
    assert WORD not in two.open()
    again = Visitor(place.address, GUEST_LOGIN, PASSWORD)
    assert WORD not in again.open()
    ids = place.store.users.ids()
    assert not any(place.store.users.is_owner(ids[name]) for name in names(place))


@pytest.mark.parametrize("how", ["log out", "end of the program"])
def test_when_a_guest_logs_out_all_goes_to_the_byte(place: Place, how: str) -> None:
    """Or the program ends."""
    visitor, name = written(place)
    if how == "log out":
        assert ask(place.address, "POST", "/logout", visitor.headers).status == 303
        until(lambda: name not in place.store.users.ids() and not left(place))
        assert names(place) == []
    place.log_ins.close()
    place.store.close()
    assert left(place, WORD if how == "log out" else f"The {WORD}") == []


def test_and_when_their_time_is_over(place: Place, clock: Clock) -> None:
    """What was attached is held no longer in memory either: a page that knows its key does not get it back."""
    visitor, name = written(place)
    user = place.store.users.ids()[name]
    clock.now += LIFE_SECONDS - 1
    place.log_ins.sweep()
    assert visitor.ask("GET", "/config").status == 200
    clock.now += 1
    assert visitor.ask("GET", "/config").status == 401
    place.log_ins.sweep()
    until(lambda: name not in place.store.users.ids() and not left(place))
    assert all(held.owner != name for held in files._held.values())
    assert place.service.in_progress.all_of(user) == []


def test_and_once_more_where_the_file_was_busy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor, name = written(place)
    rewrite, busy = place.store.connection.rewrite, [True, True]
    monkeypatch.setattr(place.store.connection, "rewrite", lambda: not (busy and busy.pop()) and rewrite())
    ask(place.address, "POST", "/logout", visitor.headers)
    until(lambda: not busy or name not in place.store.users.ids())
    for _ in range(3):
        place.log_ins.sweep()
    until(lambda: not left(place))


def test_what_an_account_wrote_stays_and_a_login_ends_with_it_or_its_password(place: Place) -> None:
    """Those change by `hierchat users` in another process. With an account, the guest password opens nothing."""
    ann, ben, cid = accounts(place, "ann", "ben", "cid")
    form = {"username": GUEST_LOGIN, "password": PASSWORD}
    assert ask(place.address, "POST", "/login", form=form).status == 401
    ann.open()
    ann.act("hc_example", {"text": WORD})
    ask(place.address, "POST", "/logout", ann.headers)
    assert ann.ask("GET", "/config").status == 401
    again = Visitor(place.address, "ANN", "the password of ann")
    assert WORD in again.open()
    place.store.accounts.set_password("ben", hashed("another password"))
    place.store.accounts.remove("cid")
    place.log_ins.sweep()
    assert [one.ask("GET", "/config").status for one in (again, ben, cid)] == [200, 401, 401]
    assert names(place) == ["ann"]


def test_only_the_owner_sees_who_is_connected_ends_sessions_changes_models_and_backs_up(place: Place) -> None:
    ann, ben, cid = accounts(place, "ann", "ben", "cid")
    ann.open()
    ben.open()
    shown = ann.act("hc_panel", {"text": "settings"})
    assert "Who is connected" in shown
    assert all(name in shown for name in ("ann", "ben", "cid"))
    theirs = ben.act("hc_panel", {"text": "settings"})
    for word in ("Who is connected", "cid", str(place.store.path), "corpus add"):
        assert word not in theirs
    session = next(one for one in place.log_ins.connected() if one.name == "cid")
    assert "Only the owner" in ben.act("hc_end_session", {"text": session.id})
    assert cid.ask("GET", "/config").status == 200
    assert "The session of cid has ended." in ann.act("hc_end_session", {"text": session.id})
    assert cid.ask("GET", "/config").status == 401
    assert "It had ended already." in ann.act("hc_end_session", {"text": session.id})
    for act in ("fetch", "stop", "eject", "remove", "removed", "keep", "add"):
        assert "Only the owner" in ben.act(f"hc_model_{act}", {"text": "Qwen3 0.6B"}), act
        assert "Only the owner" not in ann.act(f"hc_model_{act}", {"text": "Qwen3 0.6B"}), act
    assert ben.ask("PUT", "/models/x.gguf").status == 403
    assert ann.ask("PUT", "/models/x.gguf").status == 415  # no GGUF file, but taken for one
    config = ben.config()
    backup = next(one["id"] for one in config["components"] if one["props"].get("elem_id") == "hc-backup")
    (listener,) = (one["id"] for one in config["dependencies"] if one["targets"] == [[backup, "click"]])
    assert "Only the owner" in ben.call(listener, [])
