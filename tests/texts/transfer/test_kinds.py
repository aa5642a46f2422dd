"""Files of each program: branches, the open one, roles, times, who wrote a reply."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hierchat.store import Store

from .files import (
    BEGAN,
    branches,
    gpt_chat,
    gpt_node,
    gpt_sums,
    imported,
    open_branch,
    saved,
    studio_chat,
    webui_chat,
)


def only(store: Store, user: int) -> int:
    (one,) = store.chats.find(user)
    return one.id


def test_chatgpt(store: Store, user: int, tmp_path: Path) -> None:
    done = imported(store, user, saved(tmp_path / "any name", [gpt_sums()]))
    chat = only(store, user)
    assert branches(store, user, chat) == {
        ("What is 1 + 1?", "2", "And 2 + 2?", "4"),
        ("What is 1 + 1?", "2", "And 2 + 2?", "Four."),
    }
    assert open_branch(store, user, chat)[-2:] == [("user", "And 2 + 2?"), ("assistant", "4")]
    found = store.chats.get(user, chat)
    assert (found.title, found.created_at, found.updated_at) == ("Sums", BEGAN, BEGAN + 60)
    times = [message.created_at - BEGAN for message in store.messages.path(user, chat)]
    assert times == [10, 11, 12, 13]
    replies = [
        one.written_by for one in store.transfer.export_chat(user, chat).messages if one.role == "assistant"
    ]
    assert replies == [{"model": "gpt-4o"}] * 3
    assert (done.outcomes, done.messages, done.characters) == ({"new": 1}, 5, 14 + 1 + 10 + 1 + 5)
    assert (done.kinds, done.bad, done.others) == ({"ChatGPT": 1}, 0, 0)


def test_what_chatgpt_hides_is_left_out_and_its_answers_stay(store: Store, user: int, tmp_path: Path) -> None:
    code = {"content_type": "code", "language": "python", "text": "print(6 * 7)"}
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "hm", "content": "let me see"}]}
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1", "width": 10}
    spoken = {"content_type": "audio_transcription", "text": "said aloud", "direction": "in"}
    chat = gpt_chat(
        gpt_node("context", None, "user", content={"content_type": "user_editable_context"}),
        gpt_node(
            "q",
            "context",
            "user",
            content={"content_type": "multimodal_text", "parts": [picture, "What is this?", None, spoken]},
        ),
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


def test_open_webui(store: Store, user: int, tmp_path: Path) -> None:
    done = imported(store, user, saved(tmp_path / "chat-export-1700000000000.json", [webui_chat()]))
    chat = only(store, user)
    assert branches(store, user, chat) == {("Name a colour", "Red"), ("Name a colour", "Blue")}
    assert open_branch(store, user, chat) == [("user", "Name a colour"), ("assistant", "Blue")]
    found = store.chats.get(user, chat)
    assert (found.title, found.created_at, found.updated_at) == ("Colours", int(BEGAN), int(BEGAN) + 5)
    assert store.transfer.export_chat(user, chat).messages[1].written_by == {"model": "qwen2.5"}
    assert done.kinds == {"Open WebUI": 1}


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


def test_lm_studio(store: Store, user: int, tmp_path: Path) -> None:
    done = imported(store, user, saved(tmp_path / "1700000000250.conversation.json", studio_chat()))
    chat = only(store, user)
    assert branches(store, user, chat) == {
        ("Tell a joke", "Knock knock", "Who is there?"),
        ("Tell a joke", "No"),
    }
    assert [text for _, text in open_branch(store, user, chat)] == [
        "Tell a joke",
        "Knock knock",
        "Who is there?",
    ]
    found = store.chats.get(user, chat)
    assert (found.title, found.created_at, found.updated_at) == ("Jokes", BEGAN, BEGAN + 9)
    assert store.transfer.export_chat(user, chat).messages[1].written_by == {"model": "qwen2.5-7b"}
    assert done.kinds == {"LM Studio": 1}


def test_a_zip_as_chatgpt_gives_it(store: Store, user: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "export.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("chat.html", "<html>[{}]</html>")
        packed.writestr("user.json", '{"id": "user-1", "email": "a@b.c"}')
        packed.writestr("message_feedback.json", '[{"id": "1", "rating": "thumbsUp"}]')
        packed.writestr("conversations.json", saved(tmp_path / "c", [gpt_sums()]).read_bytes())
    done = imported(store, user, tmp_path / "export.zip")
    assert len(store.messages.path(user, only(store, user))) == 4
    assert (done.outcomes, done.bad, done.others) == ({"new": 1}, 0, 2)


def test_a_folder_of_several_programs(store: Store, user: int, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    (folder / "deep").mkdir(parents=True)
    saved(folder / "a.json", studio_chat())
    saved(folder / "deep" / "b.json", [gpt_sums(), webui_chat()])
    done = imported(store, user, folder)
    assert done.kinds == {"ChatGPT": 1, "Open WebUI": 1, "LM Studio": 1}
    assert {one.title for one in store.chats.find(user)} == {"Sums", "Colours", "Jokes"}
