"""In the store: every method that takes a user, with the ids of another one; and every table has an owner."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hierchat.store import Chat, Mark, NotFound, Store, StoreError
from hierchat.store.records import (
    ChatSettings,
    Document,
    NewMessage,
    NewTurn,
    Passage,
    Project,
    ToolCall,
)
from hierchat.store.repository import Repository
from tests.testing.secrets import SECRET, fill, rows_of

PUBLIC = {
    "endpoint": "a switch",
    "keys": "names and hashes of keys: for the endpoint alone",
    "key_days": "how many tokens a key took",
    "accounts": "names and hashes of passwords: for the login alone",
    "guests": "names",
    "latency": "what steps of a model cost on a machine, which tells nothing of what was written",
    "drafters": "a random name of this database",
    "told_drafters": "numbers of replies, for a drafter in another process until it has forgotten them",
    "openings": "which processes of earlier versions had the file open",
    "_sqlite_migrations": "the schema",
    "sqlite_sequence": "the schema",
}
"""Tables that hold nothing of a user's."""
INDICES = ("messages_fts", "titles_fts", "attachments_fts", "passages_fts")
"""Made from tables that have an owner; the search asks for it."""
PARTS = [kind for kind in Repository.__subclasses__() if kind.__module__.startswith("hierchat.store.")]
METHODS = {
    f"{part.__name__}.{name}": method
    for part in PARTS
    for name, method in inspect.getmembers(part, inspect.isfunction)
    if "user_id" in (parameters := inspect.signature(method).parameters) and "db" not in parameters
    if not name.startswith("_")
}
NOBODY_S = 10**9


def given(name: str, parameter: inspect.Parameter, ids: dict[str, int]) -> list[Any]:
    """What an attacker would give for a parameter: ids of the other one's, and harmless values for the rest."""
    annotation, spelled = parameter.annotation, parameter.name
    kind = (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).removeprefix("collections.abc.")
    )
    if spelled in ("conversation_id", "wanted") or (spelled, kind.split(" | ")[0]) == ("chat", "int"):
        return [ids["chat"], ids["hidden"], ids["incognito"]]
    if spelled in ("message_id", "parent_id", "leaf_id"):
        return [ids["asked"], ids["reply"], ids["edited"]]
    if spelled == "message":
        return [NewMessage(ids[name], "x") for name in ("asked", "reply", "edited")]
    if spelled == "conversation_ids":
        return [[ids["chat"]]]
    if spelled == "message_ids":
        return [[ids["asked"], ids["reply"]]]
    if spelled == "project_id":
        return [ids["project"]]
    if kind == "Document":
        return [Document(0, "x", 1, 0, False, in_project) for in_project in (False, True)]
    if spelled == "passages":
        return [iter([Passage("x", "x", "x")]) for _ in range(3)]
    if kind == "Project":
        return [Project(ids["project"], "x", "x", "x", ids["preset"])]
    if spelled.endswith("_id") and parameter.default is inspect.Parameter.empty:
        return [ids[spelled.removesuffix("_id")]]
    known: dict[str, Any] = {
        "settings": ChatSettings("x", {}, ids["preset"]), "since": Mark(), "values": "all", "kind": "written",
        "role": "user", "names": ["x"], "runs": [], "query": SECRET, "model_key": "m", "limit": 10, "after": 0,
        "before": None, "value": b"x", "name": "x", "title": "x", "text": "x", "question": "x", "result": "{}",
        "created_at": 0.0, "source": "x", "deletions": 0, "turn": NewTurn("m", "m", {}, 0, True),
        "chat": Chat("x", "x", 0.0, 0.0, [], None), "key": "x", "origin": ids["asked"],
        "most": 10, "place": "x", "project": ids["project"], "notes": "x",
        "call": ToolCall("x", "x", "{}"), "column": "notes", "otherwise": "", "days": 500,
    }  # fmt: skip
    if kind == "Sequence[str]" and spelled == "before":
        return [["x"]]
    if spelled in known:
        return [known[spelled]]
    if parameter.default is not inspect.Parameter.empty:
        return [parameter.default]
    if "bool" in kind:
        return [True]
    raise AssertionError(f"{name} has a parameter {spelled!r} that this test does not know")


def calls(name: str, method: Any, attacker: int, ids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Every id once, in its place."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    choices = {one.name: [attacker] if one.name == "user_id" else given(name, one, ids) for one in parameters}
    if "values" in choices:  # Users.choose
        choices |= {"drafts_from": choices.pop("values")}
    for number in range(max(map(len, choices.values()))):
        yield {key: many[min(number, len(many) - 1)] for key, many in choices.items()}


def part_of(store: Store, kind: type[Repository]) -> Repository:
    """The store's part of this class; documents, which the service holds, are made over the same file."""
    return next((one for one in vars(store).values() if type(one) is kind), None) or kind(store.connection)


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_no_method_gives_or_changes_anything_of_another_user(store: Store, kind: type[Repository]) -> None:
    found = fill(store, "ann")
    before = rows_of(store, found.user)
    part = part_of(store, kind)
    mine = {name: method for name, method in METHODS.items() if name.split(".")[0] == kind.__name__}
    for name, method in mine.items():
        attacker = store.users.ensure("ben")  # one of the methods deletes who calls it
        for call in calls(name, method, attacker, found.ids):
            try:
                answer = method(part, **call)
                said = str([*answer] if isinstance(answer, Iterator) else answer)
            except StoreError as error:
                said = str(error)
            assert SECRET not in said.replace(str(call.get("query")), ""), name
            assert rows_of(store, found.user) == before, name


def test_a_reply_is_begun_in_one_s_own_chats_only(store: Store) -> None:
    found, attacker = fill(store, "ann"), store.users.ensure("ben")
    mine = store.chats.create(attacker)
    turn = NewTurn("m", "m", {}, 0, True)
    for chat, parent in ((found.ids["chat"], found.ids["asked"]), (mine, found.ids["asked"])):
        with pytest.raises(NotFound):
            store.replies.begin(attacker, chat, parent, turn)


def test_a_file_that_is_called_like_another_s_chat_is_one_of_one_s_own(store: Store) -> None:
    """Importing it neither changes that chat nor tells that it is there."""
    found, attacker = fill(store, "ann"), store.users.ensure("ben")
    theirs = store.transfer.export_chat(found.user, found.ids["chat"])
    before = rows_of(store, found.user)
    mine = replace(
        theirs,
        title="x",
        project="",
        settings=None,
        messages=[replace(theirs.messages[0], text="x", attachments=())],
    )
    outcome, added = store.transfer.import_chat(attacker, replace(mine, current=mine.messages[0].name))
    assert (outcome, len(added)) == ("new", 1)
    assert rows_of(store, found.user) == before
    assert SECRET not in str(rows_of(store, attacker))


def test_a_guess_at_an_id_tells_nothing(store: Store) -> None:
    """What is another's and what never was get the same answer."""
    found, attacker = fill(store, "ann"), store.users.ensure("ben")
    for method, mine in (
        (store.chats.get, "chat"),
        (store.messages.get, "asked"),
        (store.presets.get, "preset"),
        (store.projects.get, "project"),
    ):
        said = []
        for id in (found.ids[mine], NOBODY_S):
            with pytest.raises(StoreError) as refused:
                method(attacker, id)
            said.append(str(refused.value).replace(str(id), "N"))
        assert said[0] == said[1]


def test_every_table_has_an_owner_or_a_reason(store: Store) -> None:
    """And what has an owner goes with them."""
    found = fill(store, "ann")
    with store.connection.read() as db:
        tables = {name for name in db.table_names() if not name.startswith(INDICES)}
    owned = set(rows_of(store, found.user))
    assert tables == owned | set(PUBLIC)
    store.users.forget(found.user)
    with store.connection.read() as db:
        left = {name: db[name].count for name in owned}
    assert {name: count for name, count in left.items() if count} == {}
