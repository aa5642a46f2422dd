"""Read a user's figures, make backups, and import and export chats."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from hierchat import logs
from hierchat.chat.spare_time import SpareTimeThread
from hierchat.store import Store
from hierchat.texts.exporting import beside_chats, export_json, export_markdown, export_zip
from hierchat.texts.importing import Import

BACKUP_SECONDS = 60.0
"""Between two looks whether there is a backup of today; the first one after so long."""
_log = logging.getLogger(__name__)


class UserData:
    """Reads figures, makes backups, imports and exports. Methods raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = store.changes
        self.path = store.path
        # Passed on as the store has them:
        self.over_time = store.figures.over_time
        self.backup, self.rewrite = store.connection.backup, store.connection.rewrite
        self.backups = store.backups.folder
        self._not_why = ""  # the last backup failed: it is tried again each minute, and told once
        self._daily = SpareTimeThread("backups", BACKUP_SECONDS, self._back_up_daily)
        self.back_up_daily = self._daily.wake
        """Copies the database once a day from then on, until `close`."""

    def close(self) -> None:
        """Stop the daily backups, before the store is closed."""
        self._daily.closed.set()
        self._daily.wait()

    def _back_up_daily(self) -> bool:
        said = ""
        try:
            if self._store.backups.due():
                self._store.backups.make()
        except Exception as error:
            said = logs.error_message(error)
            if said != self._not_why and not self._store.connection.closed:
                _log.warning("The database was not backed up: %s", said)
        self._not_why = said
        return True

    def importing(self, user_id: int, paths: Sequence[Path]) -> Import:
        """Return an import of chats from files, which runs as it is iterated; call `imported` at its end."""
        return Import(self._store, user_id, paths)

    def imported(self, user_id: int, importing: Import) -> None:
        """Notify the user's open pages of what an import brought."""
        self._changes.notify(user_id)
        if importing.presets:
            self._changes.notify_settings(user_id)

    def exporting(
        self,
        user_id: int,
        place: Path,
        *,
        markdown: bool,
        chat: int | None = None,
        project: int | None = None,
    ) -> tuple[int, Iterator[int]]:
        """Return how many chats are exported (one, a project's or all), and the export, which yields its progress."""
        store = self._store
        if chat is not None:
            if markdown:
                return 1, export_markdown(store, user_id, chat, place)
            return 1, export_json(store, user_id, [chat], place)
        ids = [
            one.id
            for archived in (False, True)
            for one in store.chats.find(user_id, limit=-1, archived=archived, project=project)
        ]
        if markdown:
            return len(ids), export_zip(store, user_id, ids, place)
        return len(ids), export_json(store, user_id, ids, place, beside_chats(store, user_id, project))
