"""Scripted writing while idle: what a test sets, and what was asked of it. What is kept lies in the real store."""

from dataclasses import replace

from hierchat.chat.idle_generation import IdleState
from hierchat.store import Store


class FakeIdleGeneration:
    """The surface of hierchat.chat.idle_generation.IdleGeneration; a test moves it on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self.now = IdleState("waiting")
        self.touches = 0
        for user in self._store.users.ids().values():
            self._store.users.choose(user, learns=False)
            self._store.generated.delete(user)

    def state(self, user_id: int) -> IdleState:
        on = self._store.users.chosen(user_id, "learns", False)
        return self.now if on else replace(self.now, phase="off")

    def allow(self, user_id: int, *, on: bool) -> None:
        self._store.users.choose(user_id, learns=on)

    def touched(self) -> None:
        self.touches += 1

    def delete(self, user_id: int) -> bool:
        return self._store.generated.delete(user_id)
