"""Read and write hierchat's own JSON: an array of presets and conversations, each with the version of its form."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import ValidationError

from hierchat.config import GenerationSettings
from hierchat.store import Chat, ChatMessage
from hierchat.store.records import Attachment, ChatSettings, Preset, Project, ToolCall
from hierchat.texts.importers.tree import BadChat, array, chat, label, name, record, seconds, text

VERSION = 1
_ROLES = ("system", "user", "assistant")
_STATES = ("complete", "stopped", "interrupted")
_ENDED = ("done", "failed", "refused", "stopped", "repeated", "unanswered")
"""States of a call; what waited or worked when it was exported has ended since."""
_SAMPLING = set(GenerationSettings.model_fields) - {"logit_bias"}
"""What a chat can set; token ids of one model mean nothing to another."""
_WRITTEN_BY = ("model", "model_key", "settings", "seed", "drafted")


def written(made: Chat) -> dict[str, Any]:
    return {
        "hierchat": VERSION,
        "id": made.source,
        "title": made.title,
        "created_at": made.created_at,
        "updated_at": made.updated_at,
        **({"settings": _settings(made.settings) | {"preset": made.preset}} if made.settings else {}),
        **({"project": made.project} if made.project else {}),
        "current": made.current,
        "messages": [_message(message) for message in made.messages],
    }


def recognises(value: Any) -> bool:
    return isinstance(value, dict) and "hierchat" in value


def read(value: dict[str, Any]) -> Chat:
    """Decode a conversation from the dict of `written`. Raises BadChat."""
    if value["hierchat"] != VERSION:
        raise BadChat("a newer hierchat wrote it; update this one")
    made = chat(
        source=name(value.get("id")) or "hierchat:",
        title=text(value.get("title")),
        created_at=seconds(value.get("created_at")),
        updated_at=seconds(value.get("updated_at")),
        found=[_read_message(record(message)) for message in array(value.get("messages"))],
        current=name(value.get("current")),
    )
    made = replace(made, project=label(value.get("project")))
    if not (sets := record(value.get("settings"))):
        return made
    return replace(made, settings=read_settings(sets), preset=label(sets.get("preset")))


def written_preset(preset: Preset) -> dict[str, Any]:
    return {
        "hierchat": VERSION,
        "preset": preset.name,
        "default": preset.is_default,
        "settings": _settings(preset.settings),
    }


def read_preset(value: dict[str, Any]) -> tuple[str, ChatSettings, bool]:
    """Decode `written_preset`: return name, settings, and whether it is the default. Raises BadChat."""
    name, settings = label(value.get("preset")), read_settings(record(value.get("settings")))
    if value["hierchat"] != VERSION or not name or settings is None:
        raise BadChat("a preset without a name, or with settings that this hierchat does not know")
    return name, settings, value.get("default") is True


def written_project(project: Project, presets: Mapping[int | None, str]) -> dict[str, Any]:
    """Encode a project as a dict for JSON. `presets`: names by id."""
    return {
        "hierchat": VERSION,
        "project": project.name,
        "system_prompt": project.system_prompt,
        "model": project.model,
        "begins_with": presets.get(project.preset_id, ""),
    }


def read_project(value: dict[str, Any]) -> tuple[Project, str]:
    """Decode `written_project`: return the project, and the name of its preset."""
    system, model = text(value.get("system_prompt")), label(value.get("model"))
    return Project(0, label(value["project"]), system, model), label(value.get("begins_with"))


def read_settings(value: dict[str, Any]) -> ChatSettings | None:
    """Decode the settings of a chat or a preset; None if the values are invalid."""
    given = {key: one for key, one in record(value.get("sampling")).items() if key in _SAMPLING}
    random = "seed" in given and given["seed"] is None
    try:
        known = GenerationSettings(**{key: one for key, one in given.items() if one is not None})
    except ValidationError:
        return None
    dumped = known.model_dump(mode="json")
    sampling = {key: dumped[key] for key in given} | ({"seed": None} if random else {})
    return ChatSettings(text(value.get("system_prompt")), sampling, notes=value.get("notes") is not False)


def _settings(settings: ChatSettings) -> dict[str, Any]:
    said = {"system_prompt": settings.system_prompt, "sampling": dict(settings.sampling)}
    return said if settings.notes else said | {"notes": False}


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": message.name,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "created_at": message.created_at,
        "state": message.state,
    }
    made |= {"edited": True} if message.edited else {}
    made |= {"call": asdict(message.call)} if message.call else {}
    if message.written_by:
        made["written_by"] = dict(message.written_by)
    if message.attachments:
        made["attachments"] = [
            {"name": file.name, "size": file.size, "text": file.text}
            | ({} if file.number is None else {"number": file.number})
            for file in message.attachments
        ]
    return made


def _read_message(message: dict[str, Any]) -> ChatMessage:
    role, state = message.get("role"), message.get("state")
    if role not in _ROLES or not name(message.get("id")):
        raise BadChat("one of its messages has no id or no known role")
    return ChatMessage(
        name=name(message["id"]),
        parent=name(message.get("parent")) or None,
        role=role,
        text=text(message.get("text")),
        created_at=seconds(message.get("created_at")) or 0.0,
        state=state if state in _STATES else "complete",
        written_by=_writer(record(message.get("written_by"))),
        attachments=[_file(record(file)) for file in array(message.get("attachments"))],
        edited=role == "assistant" and message.get("edited") is True,
        call=_call(record(message.get("call"))) if role == "assistant" else None,
    )


def _call(value: dict[str, Any]) -> ToolCall | None:
    server, tool, state = label(value.get("server")), label(value.get("tool")), value.get("state")
    if not server or not tool:
        return None
    said, result = text(value.get("arguments")), text(value.get("result"))
    return ToolCall(server, tool, said, state if state in _ENDED else "stopped", result)


def _file(value: dict[str, Any]) -> Attachment:
    size, held, number = value.get("size"), text(value.get("text")), value.get("number")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**53:
        size = len(held.encode())
    numbered = isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**31
    return Attachment(label(value.get("name")) or "File", size, held, number if numbered else None)


def _writer(value: dict[str, Any]) -> Mapping[str, Any] | None:
    if not (model := label(value.get("model"))):
        return None
    known = {key: value[key] for key in _WRITTEN_BY if key in value and _plain(value[key])}
    return known | {"model": model}


def _plain(value: Any, depth: int = 3) -> bool:
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_plain(one, depth - 1) for one in inside)
    return not isinstance(value, float) or math.isfinite(value)
