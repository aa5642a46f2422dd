"""The store against a model of it in Python: users, chats, branches, replies, copies, and what is deleted, taken back,
incognito, or there again after the file was closed and opened."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from hierchat.store import LOCAL_USER, Mark, NotFound, Store, StoreError
from hierchat.store.records import NewMessage, TurnFigures
from hierchat.store.replies import TOKEN
from hierchat.store.repository import NUMBER, title_of
from tests.fuzz.machines import Machine, one_of
from tests.testing.deleting import on_disk
from tests.testing.stores import TURN, new_store

WORD = re.compile(rb"word\d{6}")
"""Each text has one of its own."""
KEY = TURN.model_key
pick = st.integers(0, 999)


@dataclass
class Said:
    """A message."""

    chat: int
    parent: int | None
    role: str
    text: str
    state: str = "complete"
    tokens: list[int] | None = None
    """Of a reply that a model wrote."""
    copy_of: int | None = None


@dataclass
class Chat:
    """A chat; `changed`: when a message was added last."""

    user: int
    changed: int
    title: str = ""
    hidden: bool = False
    incognito: bool = False
    leaf: int | None = None

    @property
    def listed(self) -> bool:
        return not self.hidden and not self.incognito


class StoreMachine(Machine):
    examples = 12

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="hierchat-fuzz-"))
        self.store = new_store(self.folder / "chats.db")
        self.users: set[int] = set()
        self.chats: dict[int, Chat] = {}
        self.said: dict[int, Said] = {}
        self.writing: set[int] = set()
        self.numbers = count(1)
        self.touched: set[int] = set()

    def teardown(self) -> None:
        try:
            self.touched.update(self.chats)
            self.agrees()
        finally:
            self.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # Picks.

    def word(self) -> str:
        return f"word{next(self.numbers):06d}"

    def usable(self) -> list[int]:
        return [id for id, one in self.chats.items() if one.listed or one.incognito]

    def messages(self, kind: Callable[[Said], bool] = lambda said: True) -> list[int]:
        usable = set(self.usable())
        return [id for id, one in self.said.items() if one.chat in usable and kind(one)]

    def inside(self, chat: int) -> list[int]:
        return [id for id, one in self.said.items() if one.chat == chat]

    def owner(self, chat: int) -> int:
        self.touched.add(chat)
        return self.chats[chat].user

    def added(self, id: int, said: Said) -> int:
        assert id > max(self.said, default=0)
        self.said[id] = said
        chat = self.chats[said.chat]
        chat.leaf, chat.changed = id, next(self.numbers)
        if said.role == "user" and not chat.title:
            chat.title = title_of(said.text)
        return id

    has_chat = precondition(lambda self: self.usable())
    has_message = precondition(lambda self: self.messages())

    # Users and chats.

    @initialize()
    def begins(self) -> None:
        self.users.add(self.store.users.ensure(LOCAL_USER))
        self.new_chat(0)

    @precondition(lambda self: len(self.users) < 3)
    @rule()
    def new_user(self) -> None:
        self.users.add(self.store.users.ensure(f"user {next(self.numbers)}"))

    @precondition(lambda self: len(self.users) > 1)
    @rule(pick=pick)
    def forget_user(self, pick: int) -> None:
        user = one_of(sorted(self.users), pick)
        assert self.store.users.forget(user)
        self.users.remove(user)
        self.drop({id for id, chat in self.chats.items() if chat.user == user})
        assert self.store.chats.find(user) == []
        with pytest.raises(StoreError):
            self.store.chats.create(user)
        self.no_word_of_what_is_gone()

    @rule(pick=pick)
    def new_chat(self, pick: int) -> None:
        user = one_of(sorted(self.users), pick)
        self.chats[self.store.chats.create(user)] = Chat(user, next(self.numbers))

    @rule(pick=pick)
    def new_incognito(self, pick: int) -> None:
        user = one_of(sorted(self.users), pick)
        chat = self.store.chats.begin_incognito(user)
        self.chats[chat] = Chat(user, next(self.numbers), incognito=True)

    @precondition(lambda self: any(chat.incognito for chat in self.chats.values()))
    @rule(pick=pick)
    def end_incognito(self, pick: int) -> None:
        chat = one_of([id for id, one in self.chats.items() if one.incognito], pick)
        self.store.chats.end_incognito(self.chats[chat].user, chat)
        self.drop({chat})
        self.no_word_of_what_is_gone()

    # Messages and replies.

    @has_chat
    @rule(pick=pick, below=pick)
    def ask(self, pick: int, below: int) -> None:
        chat = one_of(self.usable(), pick)
        parent = one_of([None, *self.inside(chat)[-3:]], below)
        text = self.word()
        id = self.store.messages.add(self.owner(chat), chat, NewMessage(parent, text))
        self.added(id, Said(chat, parent, "user", text))

    @has_message
    @rule(pick=pick)
    def begin_reply(self, pick: int) -> None:
        parent = one_of(self.messages(), pick)
        chat = self.said[parent].chat
        id = self.store.replies.begin(self.owner(chat), chat, parent, TURN)
        self.added(id, Said(chat, parent, "assistant", "", "writing", []))
        self.writing.add(id)

    @precondition(lambda self: self.writing)
    @rule(
        pick=pick,
        tokens=st.lists(st.integers(0, 9), max_size=4),
        state=st.sampled_from(["writing", "writing", "complete", "stopped"]),
    )
    def write(self, pick: int, tokens: list[int], state: Any) -> None:
        id = one_of(sorted(self.writing), pick)
        said, replies = self.said.get(id), self.store.replies
        if said is None or state != "writing":
            self.writing.remove(id)
        if said is None:  # deleted meanwhile
            with pytest.raises(NotFound):
                replies.append(id, self.word(), tokens, ["target"] * len(tokens))
            with pytest.raises(NotFound):
                replies.finish(id, "", "complete", TurnFigures())
            return
        self.touched.add(said.chat)
        if state == "writing":
            said.text = " ".join([*said.text.split(), self.word()])
            said.tokens += tokens  # type: ignore[operator]
            replies.append(id, said.text, tokens, ["target"] * len(tokens))
        else:
            said.state = state
            replies.finish(id, said.text, state, TurnFigures())

    @precondition(lambda self: self.messages(lambda said: said.tokens is not None))
    @rule(pick=pick)
    def resume(self, pick: int) -> None:
        id = one_of(self.messages(lambda said: said.tokens is not None), pick)
        said = self.said[id]
        user = self.owner(said.chat)
        if said.state == "writing":
            with pytest.raises(StoreError):
                self.store.replies.resume(user, id)
            return
        self.store.replies.resume(user, id)
        said.state, said.copy_of = "writing", None
        self.writing.add(id)

    @precondition(lambda self: self.messages(lambda said: said.role == "assistant"))
    @rule(pick=pick)
    def edit(self, pick: int) -> None:
        reply = one_of(self.messages(lambda said: said.role == "assistant"), pick)
        old, text = self.said[reply], self.word()
        id = self.store.messages.edit_reply(self.owner(old.chat), reply, text)
        self.added(id, Said(old.chat, old.parent, "assistant", text))

    @has_message
    @rule(pick=pick)
    def select(self, pick: int) -> None:
        id = one_of(self.messages(), pick)
        chat = self.said[id].chat
        below, newest = {id}, id
        for other, one in self.said.items():  # a child is newer than its parent
            if one.parent in below:
                below.add(other)
                newest = other
        assert self.store.messages.select_branch(self.owner(chat), id) == newest
        self.chats[chat].leaf = newest

    @has_message
    @rule(pick=pick)
    def fork(self, pick: int) -> None:
        leaf = one_of(self.messages(), pick)
        chat = self.chats[self.said[leaf].chat]
        fork = self.store.chats.fork(chat.user, leaf)
        base = NUMBER.sub("", chat.title)
        taken = {one.title for one in self.chats.values() if one.user == chat.user}
        title = next(name for number in count(2) if (name := f"{base} ({number})") not in taken)
        new = self.chats[fork] = Chat(chat.user, 0, title if chat.title else "")
        parent = None
        ids = [said.id for said in self.store.messages.path(chat.user, fork)]
        for id, original in zip(ids, self.above(leaf), strict=True):
            said = self.said[original]
            state = said.state.replace("writing", "interrupted")
            tokens = None if said.tokens is None else list(said.tokens)
            copy_of = said.copy_of or original
            self.said[id] = Said(fork, parent, said.role, said.text, state, tokens, copy_of)
            parent = id
        new.leaf, new.changed = parent, next(self.numbers)
        self.touched.add(fork)

    def above(self, leaf: int | None) -> list[int]:
        """The path down to a message."""
        path: list[int] = []
        while leaf is not None:
            path.insert(0, leaf)
            leaf = self.said[leaf].parent
        return path

    # Deletion.

    def drop(self, chats: set[int]) -> None:
        for id in chats:
            del self.chats[id]
        for id in [id for id, said in self.said.items() if said.chat in chats]:
            del self.said[id]
        self.touched -= chats

    @has_chat
    @rule(pick=pick)
    def hide(self, pick: int) -> None:
        chat = one_of(self.usable(), pick)
        self.store.chats.hide(self.chats[chat].user, chat)
        self.chats[chat].incognito, self.chats[chat].hidden = False, True

    @precondition(lambda self: any(chat.hidden for chat in self.chats.values()))
    @rule(pick=pick)
    def restore(self, pick: int) -> None:
        chat = one_of([id for id, one in self.chats.items() if one.hidden], pick)
        self.store.chats.restore(self.owner(chat), chat)
        self.chats[chat].hidden = False

    @rule(pick=pick, every=st.booleans())
    def delete(self, pick: int, every: bool) -> None:
        hidden = [id for id, one in self.chats.items() if one.hidden]
        if every:
            self.store.chats.delete_hidden()
            self.drop(set(hidden) | {id for id, one in self.chats.items() if one.incognito})
        elif hidden:
            chat = one_of(hidden, pick)
            self.store.chats.delete_hidden([chat])
            self.drop({chat})
        self.no_word_of_what_is_gone()

    # The file.

    @rule()
    def reopen(self) -> None:
        """As when hierchat ends and starts again."""
        self.store.close()
        for id in self.writing & self.said.keys():
            self.said[id].state = "interrupted"
        self.writing.clear()
        self.store = Store.open(self.folder / "chats.db")
        self.drop({id for id, one in self.chats.items() if not one.listed})
        self.no_word_of_what_is_gone()
        self.touched |= self.chats.keys()

    def no_word_of_what_is_gone(self) -> None:
        """In any byte of any file."""
        texts = [*(said.text for said in self.said.values()), *(chat.title for chat in self.chats.values())]
        there = {word for text in texts for word in WORD.findall(text.encode())}
        assert set(WORD.findall(on_disk(self.folder / "chats.db"))) <= there

    # What must hold.

    @invariant()
    def agrees(self) -> None:
        store = self.store
        for user in self.users:
            own = {id: chat for id, chat in self.chats.items() if chat.user == user and chat.listed}
            order = sorted(own, key=lambda id: (own[id].changed, id), reverse=True)
            found = store.chats.find(user)
            assert [(one.id, one.title) for one in found] == [(id, own[id].title) for id in order]
            drafting = {
                (one.id, tuple(np.frombuffer(one.tokens, TOKEN).tolist()))
                for one in store.history.texts(user, KEY, "written", Mark())[0]
            }
            assert drafting == set(self.drafting(own))
        for id in self.touched & set(self.usable()):
            chat = self.chats[id]
            path = store.messages.path(chat.user, id)
            assert [said.id for said in path] == self.above(chat.leaf)
            for said in path:
                kept = self.said[said.id]
                assert (said.text, said.role, said.state) == (kept.text, kept.role, kept.state)
                beside = [other for other in self.inside(id) if self.said[other].parent == kept.parent]
                assert list(said.siblings) == beside
                if kept.tokens is not None:
                    assert store.replies.tokens(chat.user, said.id) == kept.tokens
            for word in path[-1].text.split()[-1:] if path else ():
                found = store.chats.find(chat.user, word)
                assert {one.id for one in found} == self.holding(chat.user, word)
        self.touched.clear()

    def drafting(self, own: dict[int, Chat]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """A copy drafts once its original is deleted for good, and then the first of several does."""
        heirs: set[int] = set()
        for id, said in sorted(self.said.items()):
            if said.copy_of in self.said or said.copy_of in heirs:
                continue
            if said.copy_of:
                heirs.add(said.copy_of)
            if said.chat in own and said.tokens and said.state != "writing":
                yield id, tuple(said.tokens)

    def holding(self, user: int, word: str) -> set[int]:
        """The chats that a search finds: by a title, or by a message that is written to its end."""
        own = {id for id, chat in self.chats.items() if chat.user == user and chat.listed}
        written = [said for said in self.said.values() if said.state != "writing"]
        found = {said.chat for said in written if word in said.text.split()}
        return own & (found | {id for id in own if word in self.chats[id].title})
