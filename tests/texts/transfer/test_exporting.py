"""What is written out: everything as JSON, which comes in again as it was; the open branch as Markdown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hierchat.reasoning import join_reasoning
from hierchat.store import Chat, Mark, Store, StoreError
from hierchat.store.connection import DatabaseUnwritable
from hierchat.store.records import (
    Attachment,
    CallState,
    ChatSettings,
    NewMessage,
    NewTurn,
    ToolCall,
    TurnFigures,
)
from hierchat.texts.exporting import beside_chats, export_json, export_markdown
from tests.testing.stores import new_store, replied

from .files import BEGAN, branches, gpt_sums, imported, open_branch, saved


def chatted(store: Store, user: int, title: str = "") -> int:
    """A conversation that was had here: a question with two replies, the first of which is open."""
    chat = store.chats.create(user, title)
    question = store.messages.add(user, chat, NewMessage(None, "Sing\n\0\N{GRINNING FACE}"))
    for number, text in enumerate(("La", "Lala")):
        reply = store.replies.begin(
            user, chat, question, NewTurn("tiny", "key", {"temperature": 0.5}, number, True)
        )
        store.replies.append(reply, text, [number], ["target"])
        store.replies.finish(reply, text, "stopped" if number else "complete", TurnFigures())
    store.messages.select_branch(user, reply - 1)
    return chat


def everything(store: Store, user: int) -> list[Chat]:
    return [store.transfer.export_chat(user, one.id) for one in store.chats.find(user, limit=-1)]


def written(store: Store, user: int, out: Path) -> Path:
    ids = [one.id for one in store.chats.find(user, limit=-1)]
    assert list(export_json(store, user, ids, out)) == list(range(1, len(ids) + 1))
    return out


def test_json_comes_in_again_as_it_was(store: Store, user: int, tmp_path: Path) -> None:
    chatted(store, user, "mine")
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    file = written(store, user, tmp_path / "out.json")
    assert file.stat().st_mode & 0o077 == 0
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        assert imported(other, there, file).outcomes == {"new": 2}
        came, before = everything(other, there), everything(store, user)
        assert [chat.source for chat in came] == [chat.source for chat in before]
        for one, two in zip(came, before, strict=True):
            texts = [message.text.replace("\0", "") for message in two.messages]
            assert [message.text for message in one.messages] == texts
            for name in ("title", "created_at", "updated_at", "current"):
                assert getattr(one, name) == getattr(two, name)
            for name in ("name", "parent", "role", "state", "created_at", "written_by"):
                assert [getattr(m, name) for m in one.messages] == [getattr(m, name) for m in two.messages]
        again = written(other, there, tmp_path / "again.json")
        assert imported(store, user, again).outcomes == {"same": 2}


@pytest.mark.parametrize("state", ["asked", "running", "done", "failed", "refused", "stopped"])
def test_calls_of_tools_come_in_again(store: Store, user: int, tmp_path: Path, state: CallState) -> None:
    """What waited or worked has ended there."""
    chat = chatted(store, user)
    call = ToolCall("files", "read_file", '{"path": "a"}', state, "Buy milk. \N{GRINNING FACE}")
    store.messages.put_call(user, store.messages.path(user, chat)[-1].id, call)
    file = written(store, user, tmp_path / "out.json")
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        imported(other, there, file)
        (came,) = everything(other, there)
        ended = replace(call, state="stopped") if state in ("asked", "running") else call
        assert [message.call for message in came.messages] == [None, ended, None]
        (one,) = other.chats.find(there)
        assert other.messages.path(there, one.id)[-1].call == ended


def test_calls_that_are_none_are_left_out(store: Store, user: int, tmp_path: Path) -> None:
    chatted(store, user)
    (value,) = json.loads(written(store, user, tmp_path / "out.json").read_text())
    whole = {"server": "s", "tool": "t", "arguments": "{}", "state": "done", "result": ""}
    wrong = [7, {}, whole | {"tool": ""}, whole | {"server": []}]
    mended = whole | {"state": {}, "arguments": 7, "result": None, "more": 1}
    calls = [None, *wrong, mended, whole]
    value["messages"] = [
        {"id": str(number), "role": "assistant", "text": "x" if number < 5 else "", "call": call}
        for number, call in enumerate(calls)
    ] + [{"id": "asks", "role": "user", "text": "x", "call": whole}]
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        assert imported(other, there, saved(tmp_path / "bad.json", value)).bad == 0
        found = [message.call for message in everything(other, there)[0].messages]
        assert found == [
            *[None] * 5,
            ToolCall("s", "t", "", "stopped"),
            ToolCall("s", "t", "{}", "done"),
            None,
        ]


def test_files_that_were_sent_go_along(store: Store, user: int, tmp_path: Path) -> None:
    files = [Attachment("a.md", 99, "# One\n```\n"), Attachment("b.py", 3, "x\0y")]
    chat = store.chats.create(user)
    store.messages.add(user, chat, NewMessage(None, "", files=files))
    file = written(store, user, tmp_path / "out.json")
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        assert imported(other, there, file).outcomes == {"new": 1}
        (message,) = everything(other, there)[0].messages
        assert list(message.attachments) == [files[0], Attachment("b.py", 3, "xy")]
    list(export_markdown(store, user, [chat], tmp_path / "notes"))
    (notes,) = (tmp_path / "notes").iterdir()
    assert "File: a.md\n````md\n# One\n```\n````\n\nFile: b.py" in notes.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [-1, 1.5, "9", True, None, 10**40])
def test_files_that_somebody_else_wrote_down(store: Store, user: int, tmp_path: Path, size: object) -> None:
    file = {"name": "a\nb" + "x" * 900, "size": size, "text": ["no", "text"]}
    message = {"id": "1", "role": "user", "text": "hm", "attachments": [file, 7, {"text": "\ud800é"}]}
    imported(store, user, saved(tmp_path / "c.json", [{"hierchat": 1, "id": "x", "messages": [message]}]))
    one, two, three = everything(store, user)[0].messages[0].attachments
    assert (one.size, one.text, two.name, two.text) == (0, "", "File", "")
    assert one.name.startswith("a bxx")
    assert (three.text, three.size) == ("?é", 3)


def test_what_was_said_elsewhere_comes_back(store: Store, user: int, tmp_path: Path) -> None:
    """There and back, with a question on each machine."""
    chat = chatted(store, user, "mine")
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        imported(other, there, written(store, user, tmp_path / "1.json"))
        (copy,) = other.chats.find(there)
        leaf = other.messages.path(there, copy.id)[-1].id
        other.messages.add(there, copy.id, NewMessage(leaf, "said there"))
        done = imported(store, user, written(other, there, tmp_path / "2.json"))
    assert (done.outcomes, done.messages) == ({"grown": 1}, 1)
    assert [text for _, text in open_branch(store, user, chat)][1:] == ["La", "said there"]
    assert len(branches(store, user, chat)) == 2


def test_a_reply_that_is_being_written_is_exported_as_far_as_it_is(
    store: Store, user: int, tmp_path: Path
) -> None:
    replied(store, user, text="so far", asked="q", state="writing")
    (value,) = json.loads(written(store, user, tmp_path / "out.json").read_text())
    assert [(one["text"], one["state"]) for one in value["messages"]] == [
        ("q", "complete"),
        ("so far", "interrupted"),
    ]


def test_nothing_is_overwritten_and_nothing_half_is_left(store: Store, user: int, tmp_path: Path) -> None:
    ids = [chatted(store, user), chatted(store, user)]
    out = tmp_path / "out.json"
    half = export_json(store, user, ids, out)
    next(half)
    half.close()
    assert list(tmp_path.glob("out*")) == []
    (tmp_path / "out.json.part").write_text("of one that was killed")
    assert list(export_json(store, user, ids, out)) == [1, 2]
    before = out.read_bytes()
    with pytest.raises(StoreError, match="already exists"):
        list(export_json(store, user, ids, out))
    assert out.read_bytes() == before
    with pytest.raises(DatabaseUnwritable, match="cannot be written"):
        list(export_json(store, user, ids, tmp_path / "no folder" / "out.json"))
    with pytest.raises(StoreError, match="Name an empty folder"):
        list(export_markdown(store, user, ids, tmp_path))
    assert list(tmp_path.glob("*.part")) == []


def test_without_chats(store: Store, user: int, tmp_path: Path) -> None:
    store.chats.create(user, "empty")
    ids = [one.id for one in store.chats.find(user)]
    assert list(export_json(store, user, ids, tmp_path / "out.json")) == []
    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_markdown(store: Store, user: int, tmp_path: Path) -> None:
    imported(store, user, saved(tmp_path / "c.json", [gpt_sums()]))
    (chat,) = store.chats.find(user)
    store.chats.rename(user, chat.id, 'a/b: "c"?' + "\N{GRINNING FACE}" * 100)
    twin = chatted(store, user, "A/B c " + "\N{GRINNING FACE}" * 100)
    store.connection._idle[-1].execute("UPDATE conversations SET created_at = ? WHERE id = ?", [BEGAN, twin])
    out = tmp_path / "chats"
    assert list(export_markdown(store, user, [chat.id, twin], out)) == [1, 2]
    first, second = sorted(file.name for file in out.iterdir())
    assert first[:10] == second[:10] == "2023-11-14"
    assert all(file.stat().st_mode & 0o077 == 0 for file in [out, *out.iterdir()])
    text = next(
        file for file in out.iterdir() if "Sums" not in file.name and "1 + 1" in file.read_text()
    ).read_text()
    blocks = text.split("\n\n")
    assert blocks[1].startswith("## You, 2023-11-")
    assert blocks[2::2] == ["What is 1 + 1?", "2", "And 2 + 2?", "4"]
    assert blocks[3].startswith("## gpt-4o, 2023-11-")
    assert blocks[-1] == "*Other versions are left out: 1 messages. The export as JSON has them.*\n"


def test_tags_edited_replies_and_summaries_come_in_again(store: Store, user: int, tmp_path: Path) -> None:
    chat = chatted(store, user, "mine")
    store.chats.set_tags(user, chat, ["work", "Two words"])
    store.messages.set_summary(user, store.messages.path(user, chat)[-1].id, "La la.")
    store.messages.edit_reply(user, store.messages.path(user, chat)[-1].id, "Lalala")
    file = written(store, user, tmp_path / "out.json")
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        imported(other, there, file)
        (came,) = everything(other, there)
        assert set(came.tags) == {"work", "Two words"}
        assert [(message.text, message.edited, message.summary) for message in came.messages[1:]] == [
            ("La", False, "La la."), ("Lala", False, ""), ("Lalala", True, ""),
        ]  # fmt: skip
        last = other.messages.path(there, other.chats.find(there)[0].id)[-1]
        assert (last.text, last.edited, last.model) == ("Lalala", True, "")
        other.history.keep_tokens("key", [(last.id, [1])])
        assert [id for id, _ in other.history.texts(there, "key", "asked", Mark())[0]] == [last.id]
    list(export_markdown(store, user, [chat], tmp_path / "read"))
    (read,) = (tmp_path / "read").iterdir()
    assert "\n\nTags: Two words, work\n\n" in read.read_text()
    assert "## Reply, edited by you, " in read.read_text()


def test_settings_of_chats_and_presets_come_in_again(store: Store, user: int, tmp_path: Path) -> None:
    sampling = {"temperature": 0.5, "seed": None, "stop": ["END"], "top_k": 7}
    teacher = store.presets.create(user, "Teacher", ChatSettings("Teach.", sampling))
    store.presets.set_default(user, teacher)
    store.presets.create(user, "Other", ChatSettings("", {"temperature": 1.0}))
    plain, taught = chatted(store, user, "plain"), chatted(store, user, "taught")
    store.chats.set_settings(user, taught, ChatSettings("Teach me.", sampling, teacher))
    ids, out = [plain, taught], tmp_path / "out.json"
    assert list(export_json(store, user, ids, out, beside_chats(store, user))) == [1, 2]
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        other.presets.create(there, "Other", ChatSettings("mine", {}))
        done = imported(other, there, out)
        assert (done.presets, done.bad, done.outcomes) == (1, 0, {"new": 2})
        mine, came = other.presets.all(there)
        assert (mine.settings.system_prompt, mine.is_default) == ("mine", False)
        assert (came.name, came.is_default) == ("Teacher", True)
        assert (came.settings.system_prompt, dict(came.settings.sampling)) == ("Teach.", sampling)
        settings = {
            one.title: other.chats.settings(there, one.id) for one in other.chats.find(there, limit=-1)
        }
        assert settings["plain"] is None
        assert settings["taught"] == ChatSettings("Teach me.", sampling, came.id)
        # What is here stays as it is, however often the file comes.
        (number,) = [one.id for one in other.chats.find(there) if one.title == "taught"]
        other.chats.set_settings(there, number, ChatSettings("Changed.", sampling))
        again = imported(other, there, out)
        assert (again.presets, again.outcomes) == (0, {"same": 2})
        kept = other.chats.settings(there, number)
        assert kept.system_prompt == "Changed."


@pytest.mark.parametrize(
    "sampling", [{"temperature": -1}, {"temperature": "hot"}, {"top_k": 1e400}, {"stop": {"a": [1]}}]
)
def test_settings_that_are_none_cost_only_themselves(
    store: Store, user: int, tmp_path: Path, sampling: object
) -> None:
    chatted(store, user, "mine")
    file = written(store, user, tmp_path / "out.json")
    (chat,) = json.loads(file.read_text())
    chat["settings"] = {"system_prompt": "Hm", "sampling": sampling, "preset": ["x"]}
    preset = {"hierchat": 1, "preset": "Bad", "settings": {"sampling": sampling}}
    good = {
        "hierchat": 1,
        "preset": "Good",
        "settings": {"sampling": {"logit_bias": {"1": 2}, "x": [[]], "top_p": 0.5}},
    }
    file.write_text(json.dumps([preset, good, chat]))
    with new_store(tmp_path / "other.db") as other:
        there = other.users.ensure("local")
        done = imported(other, there, file)
        assert (done.presets, done.bad, done.outcomes) == (1, 1, {"new": 1})
        assert "a preset without a name, or with settings" in done.reasons[0]
        assert [dict(preset.settings.sampling) for preset in other.presets.all(there)] == [{"top_p": 0.5}]
        assert other.chats.settings(there, other.chats.find(there)[0].id) is None


def test_a_thought_is_folded_in_markdown(store: Store, user: int, tmp_path: Path) -> None:
    chat, text = store.chats.create(user), join_reasoning("It asks.", "Yes.")
    replied(store, user, chat, text, asked="<think> is a mark")
    list(export_markdown(store, user, [chat], tmp_path / "out"))
    (file,) = (tmp_path / "out").iterdir()
    written = file.read_text(encoding="utf-8")
    assert "<details>\n<summary>Thoughts</summary>\n\nIt asks.\n\n</details>\n\nYes." in written
    assert "<think> is a mark" in written
    list(export_json(store, user, [chat], tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))[0]["messages"][1]["text"] == text
