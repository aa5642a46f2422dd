"""The writer of a page: it draws what changed, nothing else, and no handler can forget a part."""

import base64
import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from hierchat.page.page_sessions import Session
from hierchat.page.views import Views
from hierchat.page.writer import Writer
from hierchat.store.records import NewMessage, Project
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor
from tests.testing.waiting import until

OPEN = re.compile(r' aria-current="page"|(?<=class=")hc-current')
"""In the list, the script of the page marks what is open."""


def drawn_anew(page: Visitor) -> dict[str, str]:
    """All that the page shows, drawn from nothing; but for panels, which are drawn when they are opened."""
    events = page.app.page_events
    session = events.sessions.find(page.key)
    before, session.drawn_from = session.drawn_from, {}
    update = events.writer.write(session)
    session.drawn_from = before
    parts = {part if isinstance(part, str) else part.elem_id: value for part, value in update.items()}
    of_panels = {part.elem_id for panel in events.views.panels.values() for part in panel.outputs}
    return {name: str(parts[name]) for name in (parts.keys() & session.page.parts.keys()) - of_panels}


def another_page_asks(service: FakeService, chat: int) -> None:
    service.store.messages.add(service.user, chat, NewMessage(None, "From another page"))
    service.changes.notify(service.user, chat)


def nothing_is_written(page: Visitor) -> bool:
    page.look()
    return not page.app.page_events.sessions.find(page.key).following


def steps(page: Visitor, service: FakeService, random: Random) -> dict[str, Callable[[], Any]]:
    """What a user may do next, by name."""
    store, user = service.store, service.user
    chats = [chat.id for chat in store.chats.find(user)]
    chat, projects = (
        random.choice(chats or [0]),
        [project.id for project in service.projects.all(user)] or [0],
    )
    place = page.place.removeprefix("incognito ")
    path = store.messages.path(user, int(place)) if place.isdecimal() and int(place) in chats else []
    replies = [message.id for message in path if message.role == "assistant"] or [0]
    asked = [message.id for message in path if message.role == "user"] or [0]
    on = random.random() < 0.5

    def press(act: str, **data: Any) -> Callable[[], Any]:
        return lambda: page.press(act, **data)

    return {
        "ask": lambda: page.ask(f"Question {random.random()}"),
        "again": press("hc_again", id=asked[-1]),
        "edit": press("hc_edit", id=random.choice(asked), text="Edited"),
        "edit a reply": press("hc_edit_reply", id=random.choice(replies), text="Better"),
        "branch": press("hc_branch", id=random.choice(asked)),
        "new": press("hc_new"), "open": press("hc_open", id=chat), "go": press("hc_go", id=random.choice([0, *chats])),
        "panel": press("hc_panel", text=random.choice(["models", "insights", "settings"])),
        "search": lambda: page.give("hc-search", random.choice(["", "question", "zebra"]), "change"),
        "sources": press("hc_sources", id=random.choice(replies)),
        "details": press("hc_details", id=random.choice(replies)),
        "incognito": press("hc_incognito"), "keep": press("hc_incognito_keep"), "dismiss": press("hc_dismiss"),
        "rename": press("hc_rename", id=chat, text=f"Name {random.random()}"),
        "pin": press("hc_pin", id=chat, on=on), "archive": press("hc_archive", id=chat, on=on),
        "show archived": press("hc_show_archived"), "fork": press("hc_fork", id=random.choice(replies)),
        "delete": press("hc_delete", id=chat), "restore": press("hc_restore", id=chat),
        "new project": lambda: service.projects.save(user, Project(0, f"Project {random.random()}")),
        "unfold": press("hc_project", id=random.choice(projects)),
        "begin in a project": press("hc_project_new", id=random.choice(projects)),
        "move": press("hc_move", id=chat, text=str(random.choice([0, *projects]))),
        "delete a project": press("hc_project_delete", id=random.choice(projects)),
        "attach": press(
            "hc_attached", key=secrets.token_hex(16), chat=int(place) if path else 0, name="a.txt", size=3, step=1,
            data=base64.b64encode(b"abc").decode(),
        ),
        "elsewhere": lambda: chat and another_page_asks(service, chat),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_what_stands_on_the_page_is_what_would_be_drawn_now(fresh: FakeService, seed: int) -> None:
    random, page = Random(seed), Visitor(fresh)
    page.ask("Question")
    done = []
    for _step in range(40):
        possible = steps(page, fresh, random)
        done.append(random.choice(list(possible)))
        possible[done[-1]]()
        until(partial(nothing_is_written, page))
        shown = page.shows
        for name, part in drawn_anew(page).items():
            assert OPEN.sub("", shown[name]) == OPEN.sub("", part), (name, done)


def test_only_what_changed_is_drawn(fresh: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    page, drawn = Visitor(fresh), []
    page.ask("Question")
    write = Writer.write

    def noted(self: Writer, session: Any) -> Any:
        update = write(self, session)
        drawn.extend(part if isinstance(part, str) else part.elem_id for part in update)
        return update

    monkeypatch.setattr(Writer, "write", noted)
    page.look()
    assert set(drawn) == {"hc-context"}
    drawn.clear()
    page.give("hc-search", "zebra", "change")
    assert {"hc-list", "hc-context"} == set(drawn) - {"hc-undo", "hc-recent"}


class Unheard(threading.Event):
    """Whoever waits for it hears nothing."""

    def set(self) -> None:
        pass


def test_the_line_of_a_reply_goes_with_it_though_the_page_hears_late_of_its_end(fresh: FakeService) -> None:
    fresh.script.hold()
    page = Visitor(fresh)
    next(page.steps("hc_send", text="Question", step=1))
    session = page.app.page_events.sessions.find(page.key)
    (reply,) = session.following
    reply.ended = Unheard()
    fresh.script.release()
    until(lambda: not fresh.in_progress.all_of(fresh.user))
    page.look()
    assert "faster" in page.says("hc-live")
    reply.ended = threading.Event()
    reply.ended.set()
    page.look()
    assert page.says("hc-live") == ""


def test_what_is_forgotten_while_the_page_is_drawn_is_drawn_anew(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Visitor(fresh)
    page.ask("Question")
    context, once = Views.context, iter([True])

    def forgotten_meanwhile(self: Views, session: Session) -> Any:
        if next(once, False):
            session.forget_drawn()
        return context(self, session)

    monkeypatch.setattr(Views, "context", forgotten_meanwhile)
    page.give("hc-search", "question", "change")
    assert "Question" in page.says("hc-thread")


def test_files_go_with_a_chat_that_is_deleted_unless_the_page_shows_it(fresh: FakeService) -> None:
    page = Visitor(fresh)
    first, second = (fresh.store.chats.create(fresh.user, title) for title in ("First", "Second"))
    for chat in (first, second):
        page.press("hc_open", id=chat)
        data = base64.b64encode(b"abc").decode()
        page.press("hc_attached", key=secrets.token_hex(16), chat=chat, name=f"{chat}.txt", size=3, data=data)
    page.press("hc_delete", id=first)
    assert f"{second}.txt" in page.says("hc-tray")
    page.press("hc_delete", id=second)
    assert page.place == "0"
    assert f"{second}.txt" in page.says("hc-tray")
    assert f"{first}.txt" not in page.says("hc-tray")


def test_a_page_goes_back_from_what_cannot_be_drawn_and_says_why(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, find = Visitor(fresh), fresh.chats.find
    page.ask("Question")

    def fails(user: int, query: str, *rest: Any, **more: Any) -> Any:
        if query == "bad":
            raise ZeroDivisionError
        return find(user, query, *rest, **more)

    monkeypatch.setattr(fresh.chats, "find", fails)
    page.give("hc-search", "bad", "change")
    assert "did not expect" in page.says("hc-live")
    page.ask("It goes on")
    assert "It goes on" in page.says("hc-thread")
