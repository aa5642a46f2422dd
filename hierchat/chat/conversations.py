"""List, read, change and delete a user's chats for page, endpoint and terminal, with settings and presets."""

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hierchat.chat.in_progress import InProgress
from hierchat.config import GenerationSettings
from hierchat.store import NotFound, Store, StoreError
from hierchat.store.records import ChatSettings, Conversation, Message, Project

NOTES = "Notes about the user, in the user's own words:\n"
"""Before the notes in the system prompt."""
UNDO_SECONDS = 10.0
"""How long a deletion can be taken back."""
LONGEST_TITLE = 200
"""Characters."""

_FOR_PROGRAMS = {"logit_bias", "grammar"}
"""Settings that no chat has."""
USUAL = {"end_loops": True, "tools": False}
"""What a chat has where it says nothing, as those do that were stored by earlier versions; a program has to ask."""

log = logging.getLogger(__name__)


def own_sampling(settings: GenerationSettings) -> dict[str, Any]:
    """Turn a model's sampling into that of a chat: only what a user can set, and a new seed for each reply."""
    # Where nothing is said of thinking, nothing stands there: as in chats and presets that were stored before.
    left_out = _FOR_PROGRAMS | USUAL.keys() | (set() if settings.reasoning else {"reasoning"})
    return settings.model_dump(mode="json", exclude=left_out) | {"seed": None}


def reply_settings(sampling: Mapping[str, Any]) -> GenerationSettings:
    """Return the generation settings of one reply; if the chat names no seed, with a new random one."""
    seed = sampling.get("seed")
    return GenerationSettings(**{**USUAL, **sampling, "seed": secrets.randbits(32) if seed is None else seed})


@dataclass(frozen=True, slots=True)
class ConversationList:
    """One page of a user's list of chats, with its projects."""

    conversations: list[Conversation]
    more: bool
    """Whether there are older ones than these."""
    archived: int
    """How many chats are archived."""
    writing: frozenset[int]
    """Chats in which a reply is being written."""
    projects: Sequence[Project] = ()
    inside: Sequence[Conversation] = ()
    """The chats of the unfolded project; empty if `sought`."""
    sought: bool = False
    """Whether the user searched for words or opened the archived chats; all chats are in `conversations` then."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Chat, or project with its chats, that was deleted and can be brought back for some seconds."""

    id: int
    title: str
    seconds: float
    project: bool = False


@dataclass(frozen=True, slots=True)
class _Hidden:
    """Chats, and perhaps the project, that one deletion has hidden until they are deleted for good."""

    chats: tuple[int, ...]
    project: int | None = None


@dataclass(eq=False)
class Conversations:
    """Manages the chats of all users. Methods raise NotFound for another user's or a missing chat, and StoreError."""

    _store: Store
    _in_progress: InProgress
    _sampling_of: Callable[[str], GenerationSettings]
    """A model's default sampling by its name, the loaded one's by ""."""
    _gone: Callable[[int, Collection[int]], object] = lambda user, chats: None
    """Called with a user's chats that were deleted for good."""

    def __post_init__(self) -> None:
        store = self._store
        self._changes = store.changes
        # Passed on as the store has them:
        self.get, self.last_message = store.chats.get, store.messages.last
        self.attachments, self.attachment = store.messages.attachments, store.messages.attachment
        self.pin, self.archive = store.chats.pin, store.chats.archive
        self.count_archived = store.chats.count_archived
        self.fork, self.edit_reply = store.chats.fork, store.messages.edit_reply
        self.select_branch = store.messages.select_branch
        self._deletions: dict[_Hidden, tuple[int, threading.Timer]] = {}
        """What can be brought back -> its user, and the timer that deletes it for good."""
        self._lock = threading.Lock()

    def find(
        self, user_id: int, query: str, most: int, *, archived: bool = False, unfolded: int | None = None
    ) -> ConversationList:
        """Find a user's chats that match a query, the latest first. `archived`: only those, if there are any.
        Without a query, chats of projects other than `unfolded` are left out."""
        writing = {reply.conversation_id: reply for reply in self._in_progress.all_of(user_id)}
        chats = self._store.chats
        count = chats.count_archived(user_id)
        archived = archived and count > 0
        sought = archived or bool(query.strip())

        def found(project: int | None) -> list[Conversation]:
            return [
                chat if chat.title or chat.id not in writing else replace(chat, title=writing[chat.id].title)
                for chat in chats.find(user_id, query or None, most + 1, archived=archived, project=project)
            ]

        outside, inside = found(None if sought else 0), [] if sought or not unfolded else found(unfolded)
        return ConversationList(
            outside[:most],
            max(len(outside), len(inside)) > most,
            count,
            frozenset(writing),
            self._store.projects.all(user_id),
            inside[:most],
            sought,
        )

    def has(self, user_id: int, conversation_id: int) -> bool:
        with suppress(NotFound):
            self._store.chats.get(user_id, conversation_id)
            return True
        return False

    def title(self, user_id: int, conversation_id: int) -> str:
        """Return a chat's title; empty if it has none yet. Raises NotFound."""
        if title := self._store.chats.get(user_id, conversation_id).title:
            return title
        reply = self._in_progress.of(user_id, conversation_id)  # its first message is not stored yet
        return reply.title if reply else ""

    def messages(
        self, user_id: int, conversation_id: int, until: int | None = None, most: int = -1
    ) -> list[Message]:
        """Return the current branch of a chat up to a message, its last `most` messages, without system prompts."""
        path = self._store.messages.path(user_id, conversation_id, until, most)
        return [message for message in path if message.role != "system"]

    def create(self, user_id: int, *, incognito: bool = False, project: int | None = None) -> int:
        """Begin a chat and return its id; an incognito one is in no project, and is erased by `end_incognito`."""
        if incognito:
            return self._store.chats.begin_incognito(user_id)
        chat = self._store.chats.create(user_id, "", project)
        self._changes.notify(user_id)
        return chat

    def discard(self, user_id: int, conversation_id: int) -> bool:
        """Remove a conversation if it has no message; return whether it is gone."""
        gone = self._store.chats.discard(user_id, conversation_id)
        self._changes.notify(user_id)
        return gone

    def keep_incognito(self, user_id: int, conversation_id: int) -> None:
        self._store.chats.restore(user_id, conversation_id)
        self._changes.notify(user_id, conversation_id)

    def end_incognito(self, user_id: int, conversation_id: int) -> None:
        """Stop the reply of an incognito chat and erase the chat, in a thread of its own."""

        def end() -> None:
            self._in_progress.end(user_id, conversation_id)
            try:
                ended = self._store.chats.end_incognito(user_id, conversation_id)
            except StoreError as error:
                log.warning(
                    "An incognito chat stays in the file, out of sight, until hierchat ends: %s", error
                )
                return
            if ended:
                self._gone(user_id, [conversation_id])

        threading.Thread(target=end, name="incognito", daemon=True).start()

    def rename(self, user_id: int, conversation_id: int, title: str) -> None:
        self._store.chats.rename(user_id, conversation_id, title[:LONGEST_TITLE])

    def mark_read(self, user_id: int, conversation_id: int) -> None:
        """Remove a chat's mark of an unread reply, if the chat is still there and has one."""
        with suppress(NotFound, StoreError):  # the next time it is opened, then
            if self._store.chats.get(user_id, conversation_id).unread:
                self._store.chats.mark_unread(user_id, conversation_id, False)

    def delete(self, user_id: int, conversation_id: int) -> Deleted | None:
        """Stop and hide a chat; it is deleted after UNDO_SECONDS, or with the next deletion. None if it is gone."""
        self._in_progress.end(user_id, conversation_id)
        try:
            title = self.title(user_id, conversation_id)
            self._delete_earlier(user_id)
            self._store.chats.hide(user_id, conversation_id)
        except NotFound:
            return None
        self._delete_later(user_id, _Hidden((conversation_id,)))
        return Deleted(conversation_id, title, UNDO_SECONDS)

    def delete_project(self, user_id: int, project_id: int) -> Deleted:
        """Hide a project with its chats at once, and stop their replies; it is deleted for good as a chat is."""
        name = self._store.projects.get(user_id, project_id).name
        self._delete_earlier(user_id)
        hidden = self._store.chats.hide_project(user_id, project_id)
        for chat in hidden:
            self._in_progress.end(user_id, chat)
        self._delete_later(user_id, _Hidden(tuple(hidden), project_id))
        return Deleted(project_id, name, UNDO_SECONDS, project=True)

    def delete_from_backups(self, user_id: int) -> bool:
        """Delete for good what this user deleted, also from automatic backups; return whether all were rewritten."""
        with self._lock:
            pending = [one for one, (user, _) in self._deletions.items() if user == user_id]
            for one in pending:
                self._deletions[one][1].cancel()
        backups, ids = self._store.backups, self._store.users.ids()
        name = next((name for name, id in ids.items() if id == user_id), "")
        gone_chats = {chat for one in pending for chat in one.chats}
        gone_projects = {one.project for one in pending}
        chats = {one for one in backups.identities("conversations", user_id) if one[0] in gone_chats}
        projects = {one for one in backups.identities("projects", user_id) if one[0] in gone_projects}
        for one in pending:
            self._delete_now(one)
        return backups.forget_chats(name, chats, projects)

    def can_undo(self, user_id: int) -> bool:
        """Return whether a deletion of this user's can still be undone."""
        with self._lock:
            return any(user == user_id for user, _ in self._deletions.values())

    def restore(self, user_id: int, conversation_id: int) -> None:
        """Undo the deletion of a chat. Raises NotFound once it is deleted for good."""
        self._store.chats.restore(user_id, conversation_id)
        self._keep(user_id, _Hidden((conversation_id,)))

    def restore_project(self, user_id: int, project_id: int) -> None:
        """Undo the deletion of a project with its chats. Raises NotFound once it is deleted for good."""
        with self._lock:
            mine = (one for one, (user, _) in self._deletions.items() if user == user_id)
            hidden = next((one for one in mine if one.project == project_id), _Hidden((), project_id))
        self._store.chats.restore_project(user_id, project_id, hidden.chats)
        self._keep(user_id, hidden)

    def _keep(self, user_id: int, hidden: _Hidden) -> None:
        with self._lock:
            if (pending := self._deletions.pop(hidden, None)) is not None:
                pending[1].cancel()
        self._notify(user_id, hidden)

    def _notify(self, user_id: int, hidden: _Hidden) -> None:
        for chat in hidden.chats or [None]:
            self._changes.notify(user_id, chat)

    def _delete_later(self, user_id: int, hidden: _Hidden) -> None:
        timer = threading.Timer(UNDO_SECONDS, self._delete_now, [hidden])
        timer.daemon = True
        with self._lock:
            self._deletions[hidden] = (user_id, timer)
        timer.start()
        self._notify(user_id, hidden)

    def _delete_earlier(self, user_id: int) -> None:
        with self._lock:
            before = [one for one, (user, _) in self._deletions.items() if user == user_id]
            for one in before:
                self._deletions[one][1].cancel()
        for one in before:  # rewriting the file takes its time
            threading.Thread(target=self._delete_now, args=[one], name="delete", daemon=True).start()

    def _delete_now(self, hidden: _Hidden) -> None:
        with self._lock:
            user, _ = self._deletions.pop(hidden, (None, None))
        if user is None:  # brought back
            return
        try:
            self._store.chats.delete_hidden(hidden.chats, hidden.project)
        except StoreError as error:
            log.warning("A deleted chat stays in the file, out of sight, until hierchat ends: %s", error)
        self._gone(user, hidden.chats)

    def model_settings(self, model: str = "") -> ChatSettings:
        """Return the default settings of a model: of the one with that name, or of the loaded one."""
        return ChatSettings("", own_sampling(self._sampling_of(model)))

    def settings(
        self, user_id: int, conversation_id: int | None, project_id: int | None = None
    ) -> ChatSettings:
        """Return a chat's settings; a new chat (None) begins with its project's preset and prompt, or the default."""
        if conversation_id is None:
            projects = self._store.projects.all(user_id)
            project = next((one for one in projects if one.id == project_id), Project(0, ""))
            presets = self._store.presets.all(user_id)
            wanted = project.preset_id
            chosen = [one for one in presets if (one.id == wanted if wanted else one.is_default)]
            begins = chosen[0].settings if chosen else self.model_settings()
            return replace(begins, system_prompt=project.system_prompt or begins.system_prompt)
        if (stored := self._store.chats.settings(user_id, conversation_id)) is not None:
            return stored
        prompts = self._store.messages.system_prompts(user_id, conversation_id)
        return replace(self.model_settings(), system_prompt="\n\n".join(prompts))

    def system_prompt(self, user_id: int, settings: ChatSettings) -> str:
        """Return the text before the messages of a chat: its system prompt, and the user's notes unless left out."""
        notes = self._store.users.notes(user_id) if settings.notes else ""
        return "\n\n".join(filter(None, [settings.system_prompt, notes and NOTES + notes]))

    def keep_settings(self, user_id: int, conversation_id: int, settings: ChatSettings) -> int | None:
        """Store a chat's settings; return the number of the change, None if unchanged. Defaults are not stored."""
        if settings == self.settings(user_id, conversation_id):
            return None
        self._store.chats.set_settings(user_id, conversation_id, settings)
        return self._changes.notify_settings(user_id, conversation_id)
