"""Scripted writing while idle: what a test sets, and what was asked of it. What is kept lies in the real store."""

from dataclasses import replace

from hierchat.chat.idle_generation import IdleState
from hierchat.store import Store
from hierchat.store.records import IdleSettings


class FakeIdleGeneration:
    """The surface of hierchat.chat.idle_generation.IdleGeneration; a test moves it on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self.now = IdleState("waiting", IdleSettings())
        self.touches = 0
        for user in self._store.users.ids().values():
            self._store.users.set_idle_settings(user, IdleSettings())
            self._store.generated.delete(user)

    def state(self, user_id: int) -> IdleState:
        chosen = self._store.users.idle_settings(user_id)
        return replace(self.now, chosen=chosen, phase=self.now.phase if chosen.on else "off")

    def choose(self, user_id: int, chosen: IdleSettings) -> None:
        self._store.users.set_idle_settings(user_id, chosen)

    def touched(self) -> None:
        self.touches += 1

    def delete(self, user_id: int) -> bool:
        return self._store.generated.delete(user_id)
