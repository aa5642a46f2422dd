"""Read LM Studio's *.conversation.json: `messages` in a row, each with `versions`; known by their beginning."""

from typing import Any

from hierchat.store import Chat, ChatMessage
from hierchat.texts.importers import tree


def recognises(value: Any) -> bool:
    messages = tree.array(tree.record(value).get("messages"))
    return any("versions" in tree.record(message) for message in messages)


def read(value: dict[str, Any]) -> Chat:
    """Decode a conversation. Raises BadChat."""
    created_at = tree.seconds(value.get("createdAt"))
    nodes: list[ChatMessage] = []
    above: str | None = None
    began = ""
    for place, message in enumerate(map(tree.record, value["messages"])):
        versions = [tree.record(version) for version in tree.array(message.get("versions"))]
        made = [_node(f"{place}.{number}", above, version) for number, version in enumerate(versions)]
        nodes += made
        began = began or next(filter(None, map(_said, versions)), "")
        selected: Any = message.get("currentlySelected")
        if made:
            # What follows was said to the version that is open.
            known = isinstance(selected, int) and 0 <= selected < len(made)
            above = made[int(selected) if known else -1].name
    times = (tree.seconds(value.get(f"{role}LastMessagedAt")) for role in ("user", "assistant"))
    return tree.chat(
        source="lm-studio:"
        + (f"{tree.name(value['createdAt'])}-{tree.digest([began])[:16]}" if created_at else ""),
        title=tree.text(value.get("name")),
        created_at=created_at,
        updated_at=max(filter(None, times), default=None),
        found=nodes,
        current=above,
    )


def _node(key: str, above: str | None, version: dict[str, Any]) -> ChatMessage:
    infos = (tree.record(step.get("genInfo")) for step in _steps(version))
    model = next(filter(None, (tree.label(info.get("identifier")) for info in infos)), "")
    return tree.message_of(key, above, version.get("role"), _said(version), model)


def _steps(version: dict[str, Any]) -> list[dict[str, Any]]:
    return [tree.record(step) for step in tree.array(version.get("steps"))]


def _said(version: dict[str, Any]) -> str:
    shown = [
        step
        for step in _steps(version)
        if step.get("type") == "contentBlock" and tree.record(step.get("style")).get("type") != "thinking"
    ]
    return "\n\n".join(filter(None, (_blocks(one.get("content")) for one in shown or [version])))


def _blocks(content: Any) -> str:
    if isinstance(content, list):
        return "\n\n".join(filter(None, (_block(tree.record(block)) for block in content)))
    return tree.text(content)


def _block(block: dict[str, Any]) -> str:
    kind = tree.text(block.get("type"))
    return tree.text(block.get("text")) or (f"[{kind}]" if kind in ("file", "image") else "")
