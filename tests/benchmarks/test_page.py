"""benchmarks page and soak: a real browser from the command line to the file, and the visits of a soak."""

from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.page import scripted
from hierchat.store import Store
from hierchat.texts.importing import Import
from tests.testing import browser as driving
from tests.testing.fake_service import make


def test_the_made_up_chats_are_chats(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    chats, messages = scripted.write_conversations(path, 100_000)
    assert 100_000 <= path.stat().st_size < 130_000
    with Store.open(tmp_path / "a.db") as store:
        user = store.users.ensure("ann")
        importing = Import(store, user, [path])
        list(importing)
        assert (importing.outcomes.total(), importing.messages, importing.bad) == (chats, messages, 0)
        long = scripted.add_chat(store, user, "Long", 12)
        assert len(store.messages.path(user, long)) == 12


@pytest.mark.large
def test_a_visit_does_all_of_it_and_leaves_no_chat(tmp_path: Path) -> None:
    service = make(tmp_path)
    service.script.seconds = 1
    with driving.serving(service, ("0", soak._PASSWORD)) as address:
        did = Counter(soak._visits(address, "0", count(2)))
    assert did == {
        "visits": 1, "replies": 2, "searches": 2, "views": 4, "same": 1, "vanished": 1, "log-outs": 1,
    }  # fmt: skip
    assert service.store.chats.find(service.store.users.ensure("0")) == []
