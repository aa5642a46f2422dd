"""One contract for every reader of chats; nothing twice, only what is new; files made to do harm."""

import json
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import Store
from hierchat.texts import importing
from hierchat.texts.importers.tree import TransferError
from hierchat.texts.importing import NAMED, Import
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import child, new_store, replied

from .files import (
    BEGAN,
    branches,
    gpt_chat,
    gpt_node,
    gpt_sums,
    imported,
    open_branch,
    own_chat,
    saved,
    studio_chat,
    studio_version,
    webui_chat,
)


def without_id(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inside for key, inside in value.items() if key not in ("id", "conversation_id", "createdAt")}


@dataclass(frozen=True)
class Case:
    """A file of a program, and what is in it."""

    kind: str
    value: Any
    branches: set[tuple[str, ...]]
    open: list[str]
    title: str
    times: tuple[float, float]
    writer: dict[str, Any]


CASES = [
    Case(
        "ChatGPT", gpt_sums(),
        {("What is 1 + 1?", "2", "And 2 + 2?", "4"), ("What is 1 + 1?", "2", "And 2 + 2?", "Four.")},
        ["What is 1 + 1?", "2", "And 2 + 2?", "4"], "Sums", (BEGAN, BEGAN + 60), {"model": "gpt-4o"},
    ),
    Case(
        "Open WebUI", webui_chat(), {("Name a colour", "Red"), ("Name a colour", "Blue")},
        ["Name a colour", "Blue"], "Colours", (int(BEGAN), int(BEGAN) + 5), {"model": "qwen2.5"},
    ),
    Case(
        "LM Studio", studio_chat(), {("Tell a joke", "Knock knock", "Who is there?"), ("Tell a joke", "No")},
        ["Tell a joke", "Knock knock", "Who is there?"], "Jokes", (BEGAN, BEGAN + 9), {"model": "qwen2.5-7b"},
    ),
    Case("hierchat", own_chat(), {("q", "a")}, ["q", "a"], "t", (1.5, 3.5), own_chat()["messages"][1]["written_by"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
@pytest.mark.parametrize("known", [True, False], ids=["with an id", "without"])
def test_a_chat_comes_in_whole_and_once(
    store: Store, user: int, tmp_path: Path, case: Case, known: bool
) -> None:
    """The contract of every reader: branches, the open one, times, who wrote a reply; and nothing twice."""
    value = case.value if known else without_id(case.value)
    done = imported(store, user, saved(tmp_path / "any name", [value, value]))
    assert (done.outcomes, done.bad) == ({"new": 1, "same": 1}, 0)
    (chat,) = store.chats.find(user)
    assert branches(store, user, chat.id) == case.branches
    assert [text for _, text in open_branch(store, user, chat.id)] == case.open
    assert chat.title == case.title
    if known:
        assert (chat.created_at, chat.updated_at) == case.times
    whole = store.transfer.export_chat(user, chat.id)
    assert next(one for one in whole.messages if one.role == "assistant").written_by == case.writer
    assert done.messages == len(whole.messages)
    again = imported(store, user, saved(tmp_path / "again", value))
    assert (again.outcomes, again.messages, again.characters) == ({"same": 1}, 0, 0)
    assert store.transfer.export_chat(user, chat.id) == whole


def only(store: Store, user: int) -> int:
    (one,) = store.chats.find(user)
    return one.id


def test_what_chatgpt_hides_is_left_out_and_its_answers_stay(store: Store, user: int, tmp_path: Path) -> None:
    code = {"content_type": "code", "language": "python", "text": "print(6 * 7)"}
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "hm", "content": "let me see"}]}
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1", "width": 10}
    spoken = {"content_type": "audio_transcription", "text": "said aloud", "direction": "in"}
    asked = {"content_type": "multimodal_text", "parts": [picture, "What is this?", None, spoken]}
    chat = gpt_chat(
        gpt_node("context", None, "user", content={"content_type": "user_editable_context"}),
        gpt_node("q", "context", "user", content=asked),
        gpt_node("think", "q", "assistant", content=thoughts),
        gpt_node("search", "think", "assistant", ["search('x')"], recipient="web"),
        gpt_node("found", "search", "tool", ["pages"]),
        gpt_node("code", "found", "assistant", content=code, recipient="python"),
        gpt_node("ran", "code", "tool", content={"content_type": "execution_output", "text": "42"}),
        gpt_node("a", "ran", "assistant", ["It is ", "42."]),
        gpt_node("after", "a", "tool", ["memory"]),
        gpt_node("null", "a", "assistant", content=None),
        current="after",
    )
    imported(store, user, saved(tmp_path / "c.json", [chat]))
    assert open_branch(store, user, only(store, user)) == [
        ("user", "[image]\n\nWhat is this?\n\nsaid aloud"),
        ("assistant", "```python\nprint(6 * 7)\n```"),
        ("assistant", "It is \n\n42."),
    ]


@pytest.mark.parametrize("bare", [False, True])
def test_open_webui_s_older_exports(store: Store, user: int, tmp_path: Path, bare: bool) -> None:
    """Without what stands around the chat; with a list of messages alone."""
    chat = webui_chat()["chat"]
    if not bare:
        del chat["history"]
        chat = {"chat": chat}
    imported(store, user, saved(tmp_path / "c.json", [chat]))
    assert open_branch(store, user, only(store, user)) == [("user", "Name a colour"), ("assistant", "Blue")]
    assert store.chats.find(user)[0].created_at == BEGAN


def test_open_webui_s_calls_of_tools_are_left_out(store: Store, user: int, tmp_path: Path) -> None:
    """They stand in the reply's text, with arguments and result in attributes; others of its parts stay."""
    call = (
        '<details type="tool_calls" done="true" id="c" name="weather" arguments="&quot;{}&quot;" result="&lt;b&gt;"'
        ' files="" embeds="">\n<summary>Tool Executed</summary>\nSunny.\n</details>\n'
    )
    cut = '<details type="tool_calls" done="false" id="c" name="weather">\n<summary>Executing...'
    chat = webui_chat()
    messages = chat["chat"]["history"]["messages"]
    messages["a"] |= {"content": call}
    messages["b"] |= {"content": f"I look.\n{call}{call}It is <details>sunny</details>.\n{cut}"}
    for name, parent, role, content in (
        ("t", "b", "tool", "{}"),
        ("c", "t", "assistant", [{"type": "text", "text": call}]),
        ("d", "c", "user", "Thanks"),
    ):
        messages[name] = {"id": name, "parentId": parent, "role": role, "content": content}
    chat["chat"]["history"]["currentId"] = "d"
    imported(store, user, saved(tmp_path / "c.json", [chat]))
    assert open_branch(store, user, only(store, user)) == [
        ("user", "Name a colour"),
        ("assistant", f"I look.\nIt is <details>sunny</details>.\n{cut}"),
        ("user", "Thanks"),
    ]


def test_a_folder_of_several_programs_and_a_zip_of_chatgpt(store: Store, user: int, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    (folder / "deep").mkdir(parents=True)
    saved(folder / "a.json", studio_chat())
    saved(folder / "deep" / "b.json", [webui_chat()])
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("chat.html", "<html>[{}]</html>")
        packed.writestr("user.json", '{"id": "user-1", "email": "a@b.c"}')
        packed.writestr("message_feedback.json", '[{"id": "1", "rating": "thumbsUp"}]')
        packed.writestr("conversations.json", json.dumps([gpt_sums()]))
    done = imported(store, user, folder, tmp_path / "export.zip")
    assert (done.outcomes, done.bad) == ({"new": 3}, 0)
    assert {one.title for one in store.chats.find(user)} == {"Sums", "Colours", "Jokes"}


def grown() -> dict[str, Any]:
    value = gpt_sums(update_time=1_700_009_999)
    value["mapping"] |= [
        gpt_node("q3", "a2", "user", ["And 3 + 3?"], create_time=1_700_009_000),
        gpt_node("a4", "q3", "assistant", ["6"], create_time=1_700_009_001),
    ]
    return value | {"current_node": "a4"}


def test_one_that_has_grown_gains_what_is_new(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (chat,) = store.chats.find(user)
    store.chats.rename(user, chat.id, "mine")
    done = imported(store, user, saved(tmp_path / "c.json", [grown()]))
    assert (done.outcomes, done.messages, done.characters) == ({"grown": 1}, 2, 11)
    assert [text for _, text in open_branch(store, user, chat.id)][-3:] == ["4", "And 3 + 3?", "6"]
    (after,) = store.chats.find(user)
    assert (after.title, after.updated_at) == ("mine", 1_700_009_999)
    assert len(branches(store, user, chat.id)) == 2


def test_what_was_said_here_since_stays_open(store: Store, user: int, tmp_path: Path) -> None:
    file = saved(tmp_path / "c.json", [gpt_sums()])
    imported(store, user, file)
    (chat,) = store.chats.find(user)
    leaf = store.messages.path(user, chat.id)[-1].id
    replied(store, user, chat.id, "gladly", asked="go on", parent=leaf)
    assert imported(store, user, file).outcomes == {"same": 1}
    imported(store, user, saved(file, [grown()]))
    assert [text for _, text in open_branch(store, user, chat.id)][-3:] == ["4", "go on", "gladly"]
    assert len(branches(store, user, chat.id)) == 3


def test_versions_that_lm_studio_adds(store: Store, user: int, tmp_path: Path) -> None:
    value = studio_chat()
    imported(store, user, saved(tmp_path / "c.json", value))
    value["messages"][1]["versions"].append(studio_version("assistant", "Later"))
    value["messages"][1]["currentlySelected"] = 2
    value["messages"][2] = {"versions": [], "currentlySelected": 0}
    assert imported(store, user, saved(tmp_path / "c.json", value)).outcomes == {"grown": 1}
    (chat,) = store.chats.find(user)
    assert ("Tell a joke", "Later") in branches(store, user, chat.id)


def test_a_deleted_one_is_gone_and_comes_back(store: Store, user: int, path: Path, tmp_path: Path) -> None:
    """Also where its deletion could be undone. Another user has copies of his own."""
    words = [f"xylophone{number:03d}" for number in range(200)]
    parents = [None, *words]
    nodes = [gpt_node(word, parent, "user", [word]) for word, parent in zip(words, parents, strict=False)]
    long = gpt_chat(*nodes, current=words[-1], title=words[7], conversation_id="uniquesource")
    bob, file = store.users.ensure("bob"), saved(tmp_path / "c.json", [gpt_sums()])
    assert imported(store, user, file, saved(tmp_path / "long.json", [long])).outcomes == {"new": 2}
    assert imported(store, bob, file).outcomes == {"new": 1}
    chat = next(one.id for one in store.chats.find(user) if one.title == "Sums")
    before = branches(store, user, chat)
    assert b"xylophone" in on_disk(path)
    for one in store.chats.find(user):
        delete_for_good(store, user, one.id)
    assert [word for word in (b"xylophone", b"uniquesource") if word in on_disk(path)] == []
    assert [branches(store, bob, one.id) for one in store.chats.find(bob)] == [before]
    assert imported(store, user, file).outcomes == {"new": 1}
    store.chats.hide(user, store.chats.find(user)[0].id)
    assert imported(store, user, file).outcomes == {"same": 1}
    store.chats.delete_hidden()
    assert [branches(store, user, one.id) for one in store.chats.find(user)] == [before]


def test_its_texts_draft_as_those_that_no_model_wrote_here(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    found = store.history.without_tokens(user, "k", 0, None, 100)
    assert [text for _, text in found] == ["What is 1 + 1?", "2", "And 2 + 2?", "4", "Four."]
    store.history.keep_tokens("k", [(id, [1, 2]) for id, _ in found])
    assert [len(store.history.ids(user, "k", kind)) for kind in ("written", "asked")] == [3, 2]  # type: ignore[arg-type]


NESTED = "[" * 100_000 + "]" * 100_000


def raw(path: Path, *parts: str | bytes) -> Path:
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))
    return path


def sums(name: str) -> str:
    return json.dumps(gpt_sums(conversation_id=name))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"title": "t", "mapping": ' + NESTED + "}", "it is nested too deep"),
        ('{"title": "t" "mapping": {}}', "it is no JSON"),
        ('{"title": ' + "9" * 5000 + "}", "it is no JSON"),
        ('{"title": "t", "mapping": {}}', "t: it holds no text"),
        ('{"hierchat": 2, "title": "t", "messages": []}', "t: a newer hierchat wrote it; update this one"),
        (
            '{"hierchat": 1, "title": "t", "messages": [{"id": "1", "role": "tool"}]}',
            "no id or no known role",
        ),
        (
            '{"hierchat": 1, "title": "t", "messages": [{"id": 1, "role": "user"}, {"id": 1, "role": "user"}]}',
            "two of its messages have the same id",
        ),
        (
            json.dumps(
                gpt_chat(gpt_node("a", "b", "user", ["x"]), gpt_node("b", "a", "user", ["y"]), current="a")
            ),
            "Sums: its messages answer each other in a circle",
        ),
        (json.dumps(gpt_chat(gpt_node("a", "a", "user", ["x"]), current="a")), "in a circle"),
    ],
)
def test_a_bad_conversation_costs_no_other(
    store: Store, user: int, tmp_path: Path, bad: str, reason: str
) -> None:
    done = imported(store, user, raw(tmp_path / "c.json", "[", sums("1"), ",", bad, ",", sums("2"), "]"))
    assert (done.outcomes, done.bad) == ({"new": 2}, 1)
    assert done.reasons[0].startswith("c.json, ")
    assert reason in done.reasons[0]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (rb"\ud83d", "?"),
        (rb"\udc00\ud83d", "??"),
        (rb"\ud83d\ude00", "\N{GRINNING FACE}"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"\xed\xa0\x80", "\N{REPLACEMENT CHARACTER}" * 3),
        (rb"a\u0000b", "ab"),
        (rb"[{\"}]\\", '[{"}]\\'),
    ],
)
def test_text_that_no_file_should_hold(
    store: Store, user: int, tmp_path: Path, written: bytes, shown: str
) -> None:
    value = gpt_chat(gpt_node("q", None, "user", ["MARK"]), current="q", title="MARK", id="MARK")
    file = raw(tmp_path / "c.json", json.dumps([value]).encode().replace(b"MARK", written))
    assert imported(store, user, file).outcomes == {"new": 1}
    (chat,) = store.chats.find(user)
    assert (chat.title, open_branch(store, user, chat.id)) == (shown, [("user", shown)])
    assert imported(store, user, file).outcomes == {"same": 1}


def test_a_file_without_chats(store: Store, user: int, tmp_path: Path) -> None:
    for content in (b"", b" \n", b"Dear diary, nothing happened.", b"\0" * 5000, b"[]", b"{}", b"[1, null]"):
        done = imported(store, user, raw(tmp_path / "c.json", content))
        assert (done.outcomes, done.bad, done.messages) == ({}, 0, 0)


def test_missing_parents_begin_the_conversation(store: Store, user: int, tmp_path: Path) -> None:
    value = gpt_chat(
        gpt_node("a", "gone", "user", ["first"], create_time=1),
        gpt_node("b", "lost", "user", ["second"], create_time=2),
        gpt_node("c", "b", "assistant", ["reply"], create_time=None),
        current="nowhere",
    )
    imported(store, user, saved(tmp_path / "c.json", [value]))
    (chat,) = store.chats.find(user)
    assert branches(store, user, chat.id) == {("first",), ("second", "reply")}
    assert open_branch(store, user, chat.id)[-1] == ("assistant", "reply")


def test_a_file_that_ends_early_keeps_what_came_before(store: Store, user: int, tmp_path: Path) -> None:
    text = f"[{sums('1')},{sums('2')}]"
    for end in (len(text) // 2 + 5, len(text) // 2 + 1, len(text) - 1):
        done = imported(store, user, raw(tmp_path / "c.json", text[:end]))
        assert len(done.reasons) == 1
        assert done.reasons[0].endswith(": the file ends here, in the middle.")
    assert len(store.chats.find(user)) == 2


def test_a_long_row_a_huge_text_and_one_that_is_too_large(
    store: Store, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = [gpt_node(f"{place}", f"{place - 1}", "user", [str(place)]) for place in range(2_000)]
    huge = gpt_node("huge", "1999", "assistant", ["x y " * 250_000])
    done = imported(store, user, saved(tmp_path / "c.json", [gpt_chat(*row, huge, current="huge")]))
    assert (done.messages, done.bad) == (2_001, 0)
    (chat,) = store.chats.find(user)
    assert len(store.messages.path(user, chat.id)[-1].text) == 1_000_000
    monkeypatch.setattr(importing, "LARGEST", 1 << 20)
    monkeypatch.setattr(importing, "PIECE", 1 << 16)
    large = json.dumps(gpt_chat(gpt_node("q", None, "user", ['"}]\\' * 500_000]), current="q"))
    done = imported(store, user, raw(tmp_path / "c.json", "[", sums("1"), ",", large, ",", sums("2"), "]"))
    assert (done.outcomes, done.reasons) == ({"new": 2}, ["c.json, number 2: it has more than 1 MB."])


def test_a_large_file_is_never_held_whole(store: Store, user: int, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    with file.open("w") as out:
        out.write("[")
        for number in range(150):
            chat = gpt_chat(
                gpt_node("q", None, "user", ["one two " * 4_200]), current="q", conversation_id=str(number)
            )
            out.write("," * (number > 0) + json.dumps(chat))
        out.write("]")
    assert file.stat().st_size > 5_000_000
    tracemalloc.start()
    try:
        done = Import(store, user, [file])
        steps = [done.done for _ in done]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(store.chats.find(user, limit=-1)) == 150
    assert len(steps) >= 150
    assert steps == sorted(steps)
    assert most < 8 * importing.PIECE


def test_many_bad_ones_are_counted_and_the_first_are_named(store: Store, user: int, tmp_path: Path) -> None:
    chats = [gpt_chat(current=None, title=f"n{number}\x1b[31m\n") for number in range(NAMED + 5)]
    done = imported(store, user, saved(tmp_path / "c.json", chats))
    assert (done.bad, len(done.reasons)) == (NAMED + 5, NAMED)
    assert done.reasons[1] == "c.json, n1 [31m : it holds no text."


def test_files_that_cannot_be_read(store: Store, user: int, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("chat.html", "<html>")
    file = tmp_path / "c.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        chats = ",".join(sums(str(number)) for number in range(2_000))
        packed.writestr("conversations.json", f"[{chats}]")
    whole = file.read_bytes()
    file.write_bytes(whole[:2_000] + b"\0" * 500 + whole[2_500:])
    done = imported(store, user, file)
    assert done.bad >= 1
    assert "cannot be read (no whole zip" in done.reasons[-1]
    secret = bytearray(whole)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        secret[whole.index(mark) + at] |= 1
    file.write_bytes(secret)
    assert "password required" in imported(store, user, file).reasons[0]
    for name, said in (
        ("gone.json", r"There is no .*gone\.json\. Name the file"),
        ("empty", "no JSON file and no zip in"),
        ("other.zip", "no JSON file in"),
    ):
        with pytest.raises(TransferError, match=said):
            Import(store, user, [tmp_path / name])


def zip_of(path: Path, count: int, text: str = "[]") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(count):
            packed.writestr(f"{number}.json", text)
    return path


def test_a_zip_of_many_files_is_opened_once_and_shows_how_far_it_is(
    store: Store, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list of files is as long as they are many: to read it for each of them takes hours."""
    opened = []
    before = zipfile.ZipFile.__init__

    def counting(self: zipfile.ZipFile, *args: Any, **more: Any) -> None:
        opened.append(1)
        before(self, *args, **more)

    packed = zip_of(tmp_path / "c.zip", 500)
    monkeypatch.setattr(zipfile.ZipFile, "__init__", counting)
    done = Import(store, user, [packed])
    steps = [done.done for _ in done]
    assert len(steps) == 500
    assert steps[-1] == done.total
    assert len(opened) <= 3  # is_zipfile, the list, and what is in it


def test_an_import_can_be_cancelled_and_goes_on_later(store: Store, user: int, tmp_path: Path) -> None:
    file = saved(tmp_path / "c.json", [gpt_sums(conversation_id=f"{number}") for number in range(50)])
    done = Import(store, user, [file])
    for number, _ in enumerate(done, 1):
        if number == 10:
            done.stop.set()
    assert done.outcomes == {"new": 10}
    assert imported(store, user, file).outcomes == {"same": 10, "new": 40}


def test_a_zip_of_too_many_files_is_refused_before_they_are_listed(
    store: Store, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = zip_of(tmp_path / "c.zip", 50)
    monkeypatch.setattr(importing, "_MOST_DIRECTORY", 1_000)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(TransferError, match=r"c\.zip holds too many files\. Unpack it, and import the files"):
        Import(store, user, [packed])


@pytest.mark.parametrize("inside", ["[0],", "0,", '{"a":0},', '"ab",'])
def test_many_small_parts_are_not_made_into_objects(
    store: Store, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    monkeypatch.setattr(importing, "MOST_COMMAS", 1_000)
    parsed: list[str] = []
    before = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or before(text))
    many = '{"mapping": [' + inside * 1_001 + "0]}"
    done = imported(store, user, raw(tmp_path / "c.json", "[", sums("1"), ",", many, "]"))
    assert (done.outcomes, done.reasons) == ({"new": 1}, ["c.json, number 2: it has more than 1,000 parts."])
    assert many not in parsed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    folder = tmp_path_factory.mktemp("shared")
    return new_store(folder / "history.db"), folder / "c.json"


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300) | st.text('[]{}",\\:a1 ', max_size=80).map(str.encode))
def test_any_bytes(shared: tuple[Store, Path], content: bytes) -> None:
    store, file = shared
    done = imported(store, store.users.ensure("bytes"), raw(file, content))
    assert not done.outcomes


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
        )
    )
)
def test_each_object_of_an_array_is_cut_out_whole(shared: tuple[Store, Path], values: list[Any]) -> None:
    _, file = shared
    expected = [value for value in values if isinstance(value, dict | list)]
    for indent, ascii_only in ((None, True), (2, False)):
        content = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        for piece in (3, 1 << 18):
            with pytest.MonkeyPatch.context() as patch, raw(file, content).open("rb") as stream:
                patch.setattr(importing, "PIECE", piece)
                assert [one for one in importing.elements(stream) if one is not None] == expected


@pytest.mark.parametrize("after", [1, 67])
def test_a_killed_import(path: Path, tmp_path: Path, after: int) -> None:
    chats = 400
    file = saved(tmp_path / "c.json", [gpt_sums(conversation_id=str(number)) for number in range(chats)])

    def imports(say: Callable[..., None]) -> None:
        with new_store(path) as store:
            importing = Import(store, store.users.ensure("local"), [file])
            for _ in importing:
                say(importing.outcomes.total())

    with child(imports) as importer:
        while int(importer.said.readline()) < after:
            pass
    with Store.open(path) as store:
        user = store.users.ensure("local")
        there = store.chats.find(user, limit=-1)
        assert after <= len(there) < chats
        assert {len(store.transfer.export_chat(user, one.id).messages) for one in there} == {5}
        done = imported(store, user, file)
        assert done.outcomes == {"same": len(there), "new": chats - len(there)}
        assert len(store.chats.find(user, limit=-1)) == chats
