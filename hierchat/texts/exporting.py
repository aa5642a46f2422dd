"""Export chats of the store as files: JSON that holds everything, Markdown that people read."""

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hierchat.reasoning import split_reasoning
from hierchat.store import Chat, ChatMessage, NotFound, Store
from hierchat.store.connection import new_file
from hierchat.store.errors import translated
from hierchat.store.records import Attachment, Conversation
from hierchat.texts.attachments import with_files
from hierchat.texts.importers import own

_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')
_NAME = 50
"""Characters of a title in a file's name: four bytes each at most, of the 255 that a name may have."""


def export_json(
    store: Store, user_id: int, conversation_ids: Sequence[int], out: Path, first: Iterable[Any] = ()
) -> Iterator[int]:
    """Write `first`, and the conversations with all branches, into one file; yield how many are written.
    Raises StoreError if it exists or cannot be written."""
    with (
        new_file(out) as part,
        translated(out),
        part.open("w", encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        between = "["
        for one in first:
            file.write(between + "\n" + json.dumps(one, ensure_ascii=False))
            between = ","
        for number, chat in enumerate(_chats(store, user_id, conversation_ids), 1):
            file.write(between + "\n" + json.dumps(own.written(chat), ensure_ascii=False))
            between = ","
            yield number
        file.write("[]\n" if between == "[" else "\n]\n")


def beside_chats(store: Store, user_id: int, project_id: int | None = None) -> list[dict[str, Any]]:
    """Encode what a user has beside chats: presets, projects and notes; or only the project with this id."""
    presets, notes = store.presets.all(user_id), store.users.notes(user_id)
    names: dict[int | None, str] = {preset.id: preset.name for preset in presets}
    if project_id is not None:
        return [own.written_project(store.projects.get(user_id, project_id), names)]
    projects = [own.written_project(project, names) for project in store.projects.all(user_id)]
    return [
        *map(own.written_preset, presets),
        *projects,
        *([{"hierchat": own.VERSION, "notes": notes}] if notes else []),
    ]


def export_markdown(store: Store, user_id: int, conversation_id: int, out: Path) -> Iterator[int]:
    """Write the open branch of a conversation into a file. Raises StoreError if it exists or cannot be written."""
    for number, chat in enumerate(_chats(store, user_id, [conversation_id]), 1):
        with new_file(out) as part, translated(out):
            part.write_text(_markdown(chat), encoding="utf-8", newline="\n")
        yield number


def export_zip(store: Store, user_id: int, conversation_ids: Sequence[int], out: Path) -> Iterator[int]:
    """Write the open branch of each conversation into a file of a zip; yield how many. Raises as `export_markdown`."""
    taken: set[str] = set()
    with new_file(out) as part, translated(out), zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
        for number, chat in enumerate(_chats(store, user_id, conversation_ids), 1):
            packed.writestr(file_name(chat, taken), _markdown(chat))
            yield number


def _chats(store: Store, user_id: int, conversation_ids: Sequence[int]) -> Iterator[Chat]:
    """Yield the conversations of these ids that still exist and hold a message."""
    for conversation_id in conversation_ids:
        with suppress(NotFound):
            chat = store.transfer.export_chat(user_id, conversation_id)
            if chat.messages:
                yield chat


def _markdown(chat: Chat) -> str:
    branch = open_branch(chat)
    parts = [f"# {chat.title or 'Chat'}"]
    for message in branch:
        writer = {"user": "You", "system": "System"}.get(message.role, "Reply")
        if message.edited:
            writer = "Reply, edited by you"
        elif message.role == "assistant" and message.written_by:
            writer = str(message.written_by["model"])
        said, text = split_reasoning(message.text), message.text
        if message.role == "assistant" and said.thought:  # becomes a part that can be opened
            text = f"<details>\n<summary>Thoughts</summary>\n\n{said.thought}\n\n</details>\n\n{said.answer}"
        parts += [f"## {writer}, {_time(message.created_at)}", with_files(text.strip(), message.attachments)]
        if call := message.call:
            name = f"{call.tool} of {call.server} with {call.arguments}: {call.state}"
            parts.append(with_files("", [Attachment(name, 0, call.result)]))
    if left := len(chat.messages) - len(branch):
        parts.append(f"*Other versions are left out: {left} messages. The export as JSON has them.*")
    return "\n\n".join(parts) + "\n"


def open_branch(chat: Chat) -> list[ChatMessage]:
    """Return the messages of the open branch, from the first on."""
    known = {message.name: message for message in chat.messages}
    branch = []
    at = known.get(chat.current or chat.messages[-1].name)
    while at is not None:
        branch.append(at)
        at = known.get(at.parent or "")
    return branch[::-1]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def file_name(chat: Chat | Conversation, taken: set[str]) -> str:
    """Return date and title as a file name valid on every file system and not in `taken`, which it joins."""
    title = " ".join(_NOT_IN_NAMES.sub(" ", chat.title).split())[:_NAME].strip(" .")
    stem = f"{_time(chat.created_at)[:10]} {title or 'Chat'}"
    name, number = stem, 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem} {number}"
    taken.add(name.casefold())
    return f"{name}.md"
