"""What is written out: everything as JSON, which comes in again as it was; the open branch as Markdown."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hierchat.reasoning import join_reasoning
from hierchat.store import Chat, Store, StoreError
from hierchat.store.records import (
    Attachment,
    ChatSettings,
    NewMessage,
    NewTurn,
    Project,
    ToolCall,
    TurnFigures,
)
from hierchat.texts.exporting import beside_chats, export_json, export_markdown, export_zip
from tests.testing.stores import chat_of, drafting, new_store, replied

from .files import BEGAN, branches, gpt_sums, imported, open_branch, saved, webui_chat

CALL = ToolCall("files", "read_file", '{"path": "a"}', "done", "Buy milk. \N{GRINNING FACE}")
FILES = [Attachment("a.md", 99, "# One\n```\n"), Attachment("b.py", 3, "x y")]
SAMPLING = {"temperature": 0.5, "seed": None, "stop": ["END"], "top_k": 7}
GPT = "g-p-67d3a1b2c4d5e6f708192a3b4c5d6e7f"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """A store on another machine."""
    with new_store(tmp_path / "other.db") as store:
        yield store


@pytest.fixture
def there(other: Store) -> int:
    return other.users.ensure("local")


def chatted(store: Store, user: int, title: str = "") -> int:
    """A conversation that was had here: a question with two replies, the first of which is open."""
    chat = store.chats.create(user, title)
    question = store.messages.add(user, chat, NewMessage(None, "Sing\n\N{GRINNING FACE}"))
    for number, text in enumerate(("La", "Lala")):
        turn = NewTurn("tiny", "key", {"temperature": 0.5}, number, True)
        reply = store.replies.begin(user, chat, question, turn)
        store.replies.append(reply, text, [number], ["target"])
        store.replies.finish(reply, text, "stopped" if number else "complete", TurnFigures())
    store.messages.select_branch(user, reply - 1)
    return chat


def leaf(store: Store, user: int, chat: int) -> int:
    return store.messages.path(user, chat)[-1].id


def everything(store: Store, user: int) -> list[Chat]:
    """All chats; numbers of presets mean nothing elsewhere."""
    chats = [store.transfer.export_chat(user, one.id) for one in store.chats.find(user, limit=-1)]
    return [
        replace(chat, settings=chat.settings and replace(chat.settings, preset_id=None)) for chat in chats
    ]


def written(store: Store, user: int, out: Path, project: int | None = None) -> Path:
    ids = [one.id for one in store.chats.find(user, limit=-1)]
    beside = beside_chats(store, user, project)
    assert list(export_json(store, user, ids, out, beside)) == list(range(1, len(ids) + 1))
    return out


def test_json_comes_in_as_it_was(store: Store, user: int, other: Store, there: int, tmp_path: Path) -> None:
    """With branches, calls, files, edited replies, settings, presets, projects and notes."""
    teacher = store.presets.create(user, "Teacher", ChatSettings("Teach.", SAMPLING))
    store.presets.set_default(user, teacher)
    store.presets.create(user, "Other", ChatSettings("", {"temperature": 1.0}))
    garden = store.projects.save(user, Project(0, "Garden", "Of plants.", "tiny", teacher))
    store.users.set_notes(user, "I grow roses.")
    chat = chatted(store, user, "mine")
    reply = leaf(store, user, chat)
    store.messages.put_call(user, reply, CALL)
    edited = store.messages.edit_reply(user, reply, "Lalala")
    store.messages.add(user, chat, NewMessage(edited, "", files=FILES))
    store.chats.set_settings(user, chat, ChatSettings("Teach me.", SAMPLING, teacher, notes=False))
    store.projects.move(user, chat, garden)
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    file = written(store, user, tmp_path / "out.json")
    assert file.stat().st_mode & 0o077 == 0

    other.presets.create(there, "Other", ChatSettings("mine", {}))
    done = imported(other, there, file)
    assert (done.presets, done.bad, done.outcomes) == (1, 0, {"new": 2})
    assert everything(other, there) == everything(store, user)
    mine, came = other.presets.all(there)
    assert (mine.settings.system_prompt, mine.is_default) == ("mine", False)
    assert (came.name, came.is_default) == ("Teacher", True)
    assert (came.settings.system_prompt, dict(came.settings.sampling)) == ("Teach.", SAMPLING)
    (project,) = other.projects.all(there)
    assert project == Project(project.id, "Garden", "Of plants.", "tiny", came.id, 1)
    assert other.users.notes(there) == "I grow roses."
    (copy,) = other.chats.find(there, "Lalala")
    assert other.chats.settings(there, copy.id).preset_id == came.id
    last = other.messages.path(there, copy.id)[1]
    assert (last.text, last.edited, last.model) == ("Lalala", True, "")
    other.history.keep_tokens("k", [(last.id, [1])])
    assert drafting(other, there, "asked") == [last.id]

    # What is here stays as it is, however often the file comes.
    other.chats.set_settings(there, copy.id, ChatSettings("Changed.", SAMPLING))
    other.projects.save(there, replace(project, system_prompt="Changed."))
    other.users.set_notes(there, "Changed.")
    done = imported(other, there, file)
    assert (done.presets, done.outcomes) == (0, {"same": 2})
    assert other.chats.settings(there, copy.id).system_prompt == "Changed."
    assert other.projects.get(there, project.id).system_prompt == other.users.notes(there) == "Changed."
    assert imported(store, user, written(other, there, tmp_path / "again.json")).outcomes == {"same": 2}


def test_a_project_comes_alone_and_from_folders_of_other_programs(
    store: Store, user: int, other: Store, there: int, tmp_path: Path
) -> None:
    """Its preset, others and notes stay where they are; hostile names are names."""
    warm = store.presets.create(user, "Warm", ChatSettings("Be kind.", {}))
    store.users.set_notes(user, "I grow roses.")
    garden = store.projects.save(user, Project(0, "Garden", "Of plants.", "tiny", warm))
    store.messages.add(user, store.chats.create(user, "Roses", garden), NewMessage(None, "Hello"))
    imported(other, there, written(store, user, tmp_path / "one.json", garden))
    (came,) = other.projects.all(there)
    assert came == Project(came.id, "Garden", "Of plants.", "tiny", None, 1)
    assert (other.users.notes(there), other.presets.all(there)) == ("", [])

    def projects() -> dict[str, int]:
        return {project.name: project.chats for project in other.projects.all(there) if project.id != came.id}

    chats = [gpt_sums() | {"conversation_template_id": GPT}, webui_chat() | {"folder_id": "3f2a9c55-1b"}]
    apart = gpt_sums() | {"conversation_id": "other", "gizmo_id": "g-67d3a1b2c"}  # a GPT is no project
    imported(other, there, saved(tmp_path / "all.json", [*chats, apart]))
    assert projects() == {"ChatGPT project 67d3a1": 1, "Open WebUI folder 3f2a9c": 1}
    gpt = next(one.id for one in other.projects.all(there) if one.name.startswith("ChatGPT"))
    other.projects.save(there, Project(gpt, "Sums"))
    more = gpt_sums() | {"conversation_id": "more", "gizmo_id": GPT}
    imported(other, there, saved(tmp_path / "more.json", [more]))
    assert projects() == {"Open WebUI folder 3f2a9c": 1, "Sums": 2}
    chat = {"hierchat": 1, "messages": [{"id": "1", "role": "user", "text": "q"}]}
    hostile = ["<script>alert(1)</script>", "x" * 500, "", 5, None]
    values = [chat | {"id": str(at), "project": name} for at, name in enumerate(hostile)]
    broken = [{"hierchat": 1, "project": name, "system_prompt": 7, "model": []} for name in hostile]
    assert imported(other, there, saved(tmp_path / "c.json", [*values, *broken])).outcomes.total() == 5
    assert {"<script>alert(1)</script>": 1, "x" * 100: 1}.items() <= projects().items()
    assert len(projects()) == 4


def test_calls_that_waited_have_ended_and_those_that_are_none_are_left_out(
    store: Store, user: int, other: Store, there: int, tmp_path: Path
) -> None:
    chat = chatted(store, user)
    for state in ("asked", "running", "done", "failed", "refused", "stopped"):
        reply = replied(store, user, chat, parent=leaf(store, user, chat))
        store.messages.put_call(user, reply, replace(CALL, state=state))
    file = written(store, user, tmp_path / "out.json")
    imported(other, there, file)
    (came,) = everything(other, there)
    states = [message.call.state for message in came.messages if message.call]
    assert states == ["stopped", "stopped", "done", "failed", "refused", "stopped"]

    whole = {"server": "s", "tool": "t", "arguments": "{}", "state": "done", "result": ""}
    wrong = [7, {}, whole | {"tool": ""}, whole | {"server": []}]
    mended = whole | {"state": {}, "arguments": 7, "result": None, "more": 1}
    (value,) = json.loads(file.read_text())
    value["id"] = "another"
    value["messages"] = [
        {"id": str(number), "role": "assistant", "text": "x" if number < 5 else "", "call": call}
        for number, call in enumerate([None, *wrong, mended, whole])
    ] + [{"id": "asks", "role": "user", "text": "x", "call": whole}]
    assert imported(other, there, saved(tmp_path / "bad.json", value)).bad == 0
    bad = next(one for one in everything(other, there) if one.source == "another")
    calls = [ToolCall("s", "t", "", "stopped"), ToolCall("s", "t", "{}", "done")]
    assert [message.call for message in bad.messages] == [*[None] * 5, *calls, None]


def test_files_that_somebody_else_wrote_down(store: Store, user: int, tmp_path: Path) -> None:
    messages = []
    for number, size in enumerate((-1, 1.5, "9", True, None, 10**40)):
        file = {"name": "a\nb" + "x" * 900, "size": size, "text": ["no", "text"]}
        files = [file, 7, {"text": "\ud800é"}]
        messages.append({"id": str(number), "role": "user", "text": "hm", "attachments": files})
    imported(store, user, saved(tmp_path / "c.json", [{"hierchat": 1, "id": "x", "messages": messages}]))
    (chat,) = everything(store, user)
    assert len(chat.messages) == 6
    for message in chat.messages:
        one, two, three = message.attachments
        assert (one.size, one.text, two.name, two.text) == (0, "", "File", "")
        assert one.name.startswith("a bxx")
        assert (three.text, three.size) == ("?é", 3)


def test_what_was_said_there_comes_back(
    store: Store, user: int, other: Store, there: int, tmp_path: Path
) -> None:
    """There and back, with a question on each machine."""
    chat = chatted(store, user, "mine")
    imported(other, there, written(store, user, tmp_path / "1.json"))
    (copy,) = other.chats.find(there)
    other.messages.add(there, copy.id, NewMessage(leaf(other, there, copy.id), "said there"))
    done = imported(store, user, written(other, there, tmp_path / "2.json"))
    assert (done.outcomes, done.messages) == ({"grown": 1}, 1)
    assert [text for _, text in open_branch(store, user, chat)][1:] == ["La", "said there"]
    assert len(branches(store, user, chat)) == 2


def test_nothing_is_overwritten_and_nothing_half_is_left(store: Store, user: int, tmp_path: Path) -> None:
    """A reply that is being written is there as far as it is; a chat without messages is not."""
    writing = replied(store, user, text="so far", asked="q", state="writing")
    ids, out = [chatted(store, user), chat_of(store, user, writing)], tmp_path / "out.json"
    half = export_json(store, user, ids, out)
    next(half)
    half.close()
    assert list(tmp_path.glob("out*")) == []
    (tmp_path / "out.json.part").write_text("of one that was killed")
    assert list(export_json(store, user, [store.chats.create(user, "empty"), *ids], out)) == [1, 2]
    before = out.read_bytes()
    messages = json.loads(before)[1]["messages"]
    assert [(one["text"], one["state"]) for one in messages] == [("q", "complete"), ("so far", "interrupted")]
    for again in (export_json(store, user, ids, out), export_markdown(store, user, ids[0], out)):
        with pytest.raises(StoreError, match="already exists"):
            list(again)
    assert out.read_bytes() == before
    assert list(tmp_path.glob("*.part")) == []
    assert list(export_json(store, user, [], tmp_path / "none.json")) == []
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_markdown(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (sums,) = store.chats.find(user)
    store.chats.rename(user, sums.id, 'a/b: "c"?' + "\N{GRINNING FACE}" * 100)
    twin = chatted(store, user, "A/B c " + "\N{GRINNING FACE}" * 100)
    edited = store.messages.edit_reply(user, leaf(store, user, twin), "Lalala")
    asked = store.messages.add(user, twin, NewMessage(edited, "<think> is a mark", files=FILES))
    store.messages.add(user, twin, NewMessage(asked, join_reasoning("It asks.", "Yes."), "assistant"))
    store.connection._idle[-1].execute("UPDATE conversations SET created_at = ? WHERE id = ?", [BEGAN, twin])
    out, alone = tmp_path / "chats.zip", tmp_path / "chat.md"
    assert list(export_zip(store, user, [sums.id, twin], out)) == [1, 2]
    assert list(export_markdown(store, user, twin, alone)) == [1]
    assert all(file.stat().st_mode & 0o077 == 0 for file in (out, alone))
    with zipfile.ZipFile(out) as packed:
        assert [name[:10] for name in packed.namelist()] == ["2023-11-14"] * 2
        first, second = (packed.read(name).decode() for name in packed.namelist())
    assert alone.read_text(encoding="utf-8") == second
    blocks = first.split("\n\n")
    assert blocks[1].startswith("## You, 2023-11-")
    assert blocks[2::2] == ["What is 1 + 1?", "2", "And 2 + 2?", "4"]
    assert blocks[3].startswith("## gpt-4o, 2023-11-")
    assert blocks[-1] == "*Other versions are left out: 1 messages. The export as JSON has them.*\n"
    for said in (
        "## Reply, edited by you, ",
        "<details>\n<summary>Thoughts</summary>\n\nIt asks.\n\n</details>\n\nYes.",
        "File: a.md\n````md\n# One\n```\n````\n\nFile: b.py",
        "<think> is a mark",
    ):
        assert said in second


def test_settings_that_are_none_cost_only_themselves(
    store: Store, user: int, other: Store, there: int, tmp_path: Path
) -> None:
    """And tags and summaries, which earlier versions exported, cost nothing."""
    chatted(store, user, "mine")
    (chat,) = json.loads(written(store, user, tmp_path / "out.json").read_text())
    chat["tags"], chat["messages"][0]["summary"] = ["work"], "Of songs."
    some = {"logit_bias": {"1": 2}, "x": [[]], "top_p": 0.5}
    values = [{"hierchat": 1, "preset": "Good", "settings": {"sampling": some}}]
    wrong = [{"temperature": -1}, {"temperature": "hot"}, {"top_k": 1e400}, {"stop": {"a": [1]}}]
    for number, sampling in enumerate(wrong):
        values.append({"hierchat": 1, "preset": "Bad", "settings": {"sampling": sampling}})
        settings = {"system_prompt": "Hm", "sampling": sampling, "preset": ["x"]}
        values.append(chat | {"id": str(number), "settings": settings})
    done = imported(other, there, saved(tmp_path / "bad.json", values))
    assert (done.presets, done.bad, done.outcomes) == (1, 4, {"new": 4})
    assert "a preset without a name, or with settings" in done.reasons[0]
    assert [dict(preset.settings.sampling) for preset in other.presets.all(there)] == [{"top_p": 0.5}]
    assert [chat.settings for chat in everything(other, there)] == [None] * 4
