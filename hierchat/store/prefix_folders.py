"""Keep the folders of what a model has read for users, and delete those of chats that are gone."""

import shutil

from hierchat.store.connection import Connection
from hierchat.store.errors import StoreError

_KEPT = (
    "SELECT conversations.user_id, conversations.id FROM conversations JOIN users ON users.id = conversations.user_id"
    " WHERE NOT incognito AND hidden_by IS NULL AND name NOT IN (SELECT name FROM guests)"
)


class PrefixFolders:
    """Folder of what the model has read (engine/cpu/prefixes.py), by user and chat. Every deletion calls `sweep`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.path = connection.path.with_name(connection.path.name + ".prefixes")
        connection.before_rewriting = self.sweep

    def may_keep(self, user_id: int, chat: int) -> bool:
        """Return whether this chat's text may be written: not an incognito, deleted or guest's one."""
        with self._connection.read() as db:
            wanted = f"{_KEPT} AND conversations.user_id = ? AND conversations.id = ?"
            return db.execute(wanted, [user_id, chat]).fetchone() is not None

    def sweep(self) -> None:
        """Delete the folders of all chats whose text may not be kept. Raises nothing."""
        if not self.path.is_dir():
            return
        try:
            with self._connection.read() as db:
                kept = {(str(user), str(chat)) for user, chat in db.execute(_KEPT)}
            users = {user for user, _ in kept}
            for folder in self.path.iterdir():
                if folder.name not in users:
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                for chat in folder.iterdir():
                    if (folder.name, chat.name) not in kept:
                        shutil.rmtree(chat, ignore_errors=True)
        except (OSError, StoreError):  # the next sweep finds them
            return

    def drop(self, user_id: int) -> None:
        shutil.rmtree(self.path / str(user_id), ignore_errors=True)
