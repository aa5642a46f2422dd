"""A chat goes for good, by the way that the page takes: hidden first, deleted when nobody took it back."""

from contextlib import suppress
from pathlib import Path

from hierchat.store import Store


def delete_for_good(store: Store, user_id: int, conversation_id: int) -> None:
    """Raises NotFound."""
    store.chats.hide(user_id, conversation_id)
    store.chats.delete_hidden([conversation_id])


def on_disk(path: Path) -> bytes:
    """All bytes of a database and of what stands beside it."""
    found = []
    for file in path.parent.glob(path.name + "*"):
        with suppress(FileNotFoundError):  # the log goes with the last connection
            found.append(file.read_bytes())
    return b"".join(found)
