"""Histories: bounded, put away and read again, in the order in which they were written."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.vllm.user_state import UserState, UserStateFile, UserStateFileError, UserStates

Make = Callable[..., UserStates]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[UserStates] = []

    def books(most: int = 1000, memory: int = 2**30, model: str = "tiny") -> UserStates:
        made.append(UserStates(UserStateFile(tmp_path / "books" / "drafts.db"), model, most, memory))
        return made[-1]

    yield books
    for one in made:
        one.close()


def texts(user: UserState) -> list[list[int]]:
    """What can draft, oldest first."""
    tokens = user.index.arrays.tokens
    return [tokens[start : start + length].tolist() for start, length in user.places.values()]


def write(books: UserStates, name: str, *replies: tuple[str, list[int]]) -> UserState:
    user = books.begin(name)
    for reply, tokens in replies:
        books.keep(user, reply, tokens)
    user.writing -= 1
    books.wait()
    return user


def test_what_was_kept_is_there_at_the_next_start(make: Make, tmp_path: Path) -> None:
    user = write(make(), "ann", ("1", [1, 2, 3]), ("2", [4, 5]), ("1", [6, 7]))
    user.acceptance.curve[0, 0, 0] = 7
    found = write(make(), "ann")
    assert texts(found) == [[4, 5], [6, 7]] == texts(user)
    assert found.tokens == 4
    assert texts(write(make(), "ben")) == []
    assert texts(write(make(model="another"), "ann")) == []
    modes = {file.stat().st_mode & 0o077 for file in (tmp_path / "books").iterdir()}
    assert modes == {0}  # only the owner can read it


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 60), max_size=12), most=st.integers(1, 120), again=st.integers(0, 12))
def test_no_more_is_held_than_there_is_room_for(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, again: int
) -> None:
    """The newest replies that fit, in memory and in the file; `again`: read anew before this one."""
    file = tmp_path_factory.mktemp("bounded") / "drafts.db"
    books = UserStates(UserStateFile(file), "tiny", most)
    user = books.begin("ann")
    for number, size in enumerate(sizes):
        if number == again:
            books.close()
            books = UserStates(UserStateFile(file), "tiny", most)
            user = books.begin("ann")
        books.keep(user, str(number), [number] * size)
    books.wait()
    kept: list[int] = []
    for number in reversed(range(len(sizes))):
        if sum(sizes[one] for one in [*kept, number]) > most:
            break
        kept.insert(0, number)
    assert texts(user) == [[number] * sizes[number] for number in kept]
    assert books.held() == (len(kept), sum(sizes[one] for one in kept))
    books.close()


def test_who_is_not_writing_goes_from_memory_and_comes_back(make: Make) -> None:
    books = make(memory=0)
    first = write(books, "ann", ("1", [1, 2, 3]))
    held = books.begin("ben")
    assert len(books) == 1  # ann is gone, for there is no room
    again = books.begin("ann")
    books.wait()
    assert again is not first
    assert texts(again) == [[1, 2, 3]]
    books.begin("cid")
    assert len(books) == 3  # those who are writing stay
    assert books.begin("ben") is held


def test_an_index_of_holes_is_made_anew(make: Make) -> None:
    """Removed texts leave holes, which are gone once most of it is holes."""
    books = make(most=1000)
    user = write(books, "ann", *((str(number), [number] * 900) for number in range(100)))
    assert len(user.index) > 90_000
    fresh = write(books, "ann")
    assert fresh is not user
    assert texts(fresh) == [[99] * 900]
    assert len(fresh.index) == 901


def test_forgetting_reaches_what_is_not_in_memory(make: Make) -> None:
    write(make(), "ann", ("1", [1, 2]), ("2", [3, 4]))
    write(make(model="another"), "ann", ("1", [5]))
    books = make()
    assert books.forget("ann", ["1", "7"]) == {"1"}
    assert texts(write(books, "ann")) == [[3, 4]]
    assert texts(write(make(model="another"), "ann")) == []
    assert books.forget("ann", None) == {"2"}
    assert texts(write(make(), "ann")) == []


def test_what_was_learned_goes_with_the_last_reply(make: Make, tmp_path: Path) -> None:
    """What another version learned is learned anew."""
    file = UserStateFile(tmp_path / "books" / "drafts.db")
    for model, reply in (("tiny", "1"), ("tiny", "2"), ("another", "1")):
        file.keep("ann", model, reply, [1, 2], b"learned")
    file.keep("ben", "another", "1", [3], b"learned")
    file.forget("ann", ["1"])
    assert (file.acceptance("ann", "another"), file.acceptance("ann", "tiny")) == (None, b"learned")
    assert file.acceptance("ben", "another") == b"learned"
    file.close()
    found = write(make(), "ann")
    assert texts(found) == [[1, 2]]
    assert not np.any(found.acceptance.curve)


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    UserStateFile(tmp_path / "newer.db").close()
    for name, script in (
        ("other", "CREATE TABLE mine (id)"),
        ("newer", "PRAGMA user_version = 2"),
    ):
        made = sqlite3.connect(tmp_path / f"{name}.db")
        made.execute(script)
        made.close()
    (tmp_path / "text.db").write_text("no database at all, but long enough to be taken for one" * 30)
    (tmp_path / "file").touch()
    before = (tmp_path / "other.db").read_bytes()
    for name, said in (
        ("other.db", r"is not its file\. Name another file in HIERCHAT_DRAFTER_DB"),
        ("text.db", "it is damaged"),
        ("newer.db", "another version of hierchat"),
        ("file/drafts.db", "HIERCHAT_DRAFTER_DB"),
    ):
        with pytest.raises(UserStateFileError, match=said):
            UserStateFile(tmp_path / name)
    assert (tmp_path / "other.db").read_bytes() == before
