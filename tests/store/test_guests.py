"""Guests: nothing of them is left when they have gone, in no file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hierchat.store import Attachment, ChatSettings, NewMessage, NewTurn, Store

WORD = "xylophonist"


def write(store: Store, name: str, word: str = WORD) -> int:
    """A chat with everything in it that a chat can hold."""
    user = store.users.ensure(name)
    chat = store.chats.create(user)
    file = Attachment(f"{word}.txt", 20, f"about a {word}")
    asked = store.messages.add(user, chat, NewMessage(None, f"Who is the {word}?", files=[file]))
    reply = store.replies.begin(user, chat, asked, NewTurn("m", "m", {}, 0, True))
    store.replies.append(reply, f"The {word} plays.", [7, 8], ["context", "target"])
    store.chats.set_tags(user, chat, [word])
    store.presets.create(user, word, ChatSettings(f"You are a {word}", {}))
    store.comparisons.add(user, chat, word, 0.0, word)
    store.learned.keep(user, "m", "successors", word.encode())
    store.chats.rename(user, chat, word)
    return user


def left(path: Path, word: str = WORD) -> list[str]:
    return [file.name for file in path.parent.iterdir() if word.encode() in file.read_bytes()]


def test_what_a_guest_wrote_goes_when_the_store_closes(path: Path) -> None:
    with Store.open(path) as store:
        guest = store.guests.begin()
        assert store.guests.begin() != guest
        write(store, guest)
        write(store, "ann", "violinist")
    assert left(path) == []
    assert left(path, "violinist")
    with Store.open(path) as store:
        assert list(store.users.ids()) == ["ann"]


def test_and_when_the_file_is_opened_after_a_crash(path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from hierchat.store import Store; from tests.store.test_guests import write\n"
        "store = Store.open(Path(sys.argv[1])); write(store, store.guests.begin()); os._exit(0)"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code, str(path), root], check=True, timeout=120)
    assert left(path)
    with Store.open(path) as store:
        assert store.users.ids() == {}
        assert left(path) == []


def test_a_guest_of_a_process_that_runs_stays(path: Path) -> None:
    with Store.open(path) as store:
        guest = store.guests.begin()
        user = write(store, guest)
        with Store.open(path):  # another command over the same file
            pass
        assert store.users.ids() == {guest: user}


@pytest.mark.parametrize("again", [False, True])
def test_a_guest_who_left_before_leaves_nothing_either(path: Path, again: bool) -> None:
    with Store.open(path) as store:
        guest = store.guests.begin()
        store.users.forget(write(store, guest))
        assert left(path) == []
        if again:  # a request that was on its way makes the user once more
            write(store, guest)
    assert left(path) == []
    with Store.open(path) as store:
        assert store.users.ids() == {}
