"""Projects and notes as they come in: out of other programs' exports, and from here back again."""

from __future__ import annotations

from pathlib import Path

from hierchat.store import Store
from hierchat.store.records import ChatSettings, NewMessage, Project
from hierchat.texts.exporting import beside_chats, export_json
from tests.testing.stores import new_store

from .files import gpt_sums, imported, saved, webui_chat

GPT = "g-p-67d3a1b2c4d5e6f708192a3b4c5d6e7f"


def projects(store: Store, user: int) -> dict[str, int]:
    return {project.name: project.chats for project in store.projects.all(user)}


def test_folders_of_other_programs_come_in_as_projects(store: Store, user: int, tmp_path: Path) -> None:
    chats = [gpt_sums() | {"conversation_template_id": GPT}, webui_chat() | {"folder_id": "3f2a9c55-1b"}]
    other = gpt_sums() | {"conversation_id": "other", "gizmo_id": "g-67d3a1b2c"}  # a GPT is no project
    imported(store, user, saved(tmp_path / "all.json", [*chats, other]))
    assert projects(store, user) == {"ChatGPT project 67d3a1": 1, "Open WebUI folder 3f2a9c": 1}
    (gpt, _) = store.projects.all(user)
    store.projects.save(user, Project(gpt.id, "Sums"))
    more = gpt_sums() | {"conversation_id": "more", "gizmo_id": GPT}
    imported(store, user, saved(tmp_path / "more.json", [more]))
    assert projects(store, user) == {"Open WebUI folder 3f2a9c": 1, "Sums": 2}


def test_hostile_names_of_projects_are_names(store: Store, user: int, tmp_path: Path) -> None:
    chat = {"hierchat": 1, "id": "x", "messages": [{"id": "1", "role": "user", "text": "q"}]}
    names = ["<script>alert(1)</script>", "x" * 500, "", 5, None]
    values = [chat | {"id": str(at), "project": name} for at, name in enumerate(names)]
    broken = [{"hierchat": 1, "project": name, "system_prompt": 7, "model": []} for name in names]
    assert imported(store, user, saved(tmp_path / "c.json", [*values, *broken])).taken == 5
    assert projects(store, user) == {"<script>alert(1)</script>": 1, "x" * 100: 1}


def test_what_was_exported_comes_in_again(store: Store, user: int, tmp_path: Path) -> None:
    warm = store.presets.create(user, "Warm", ChatSettings("Be kind.", {}))
    store.users.set_notes(user, "I grow roses.")
    garden = store.projects.save(user, Project(0, "Garden", "Of plants.", "tiny", warm))
    chat = store.chats.create(user, "Roses", garden)
    store.messages.add(user, chat, NewMessage(None, "Hello"))
    store.chats.set_settings(user, chat, ChatSettings("", {}, notes=False))
    whole, alone = tmp_path / "all.json", tmp_path / "one.json"
    assert list(export_json(store, user, [chat], whole, beside_chats(store, user))) == [1]
    assert list(export_json(store, user, [chat], alone, beside_chats(store, user, garden))) == [1]
    for file, notes in ((whole, "I grow roses."), (alone, "")):
        with new_store(tmp_path / f"{file.stem}.db") as other:
            there = other.users.ensure("local")
            imported(other, there, file)
            (came,) = other.projects.all(there)
            assert (came.name, came.system_prompt, came.model, came.chats) == (
                "Garden",
                "Of plants.",
                "tiny",
                1,
            )
            assert other.users.notes(there) == notes
            assert [preset.id for preset in other.presets.all(there)] == [came.preset_id] * bool(notes)
            (one,) = other.chats.find(there)
            assert other.chats.settings(there, one.id) == ChatSettings("", {}, notes=False)
            other.projects.save(there, Project(came.id, "Garden", "Changed here."))
            other.users.set_notes(there, "Changed here.")
            imported(other, there, file)
            assert other.projects.all(there)[0].system_prompt == other.users.notes(there) == "Changed here."
