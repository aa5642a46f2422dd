"""An import that is killed leaves whole conversations, and can be run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hierchat.store import Store

from .files import gpt_sums, imported

CHATS = 500
IMPORT = """
import sys
from pathlib import Path
from hierchat.store import Store
from hierchat.texts.importing import Import
with Store.open(Path(sys.argv[1])) as store:
    importing = Import(store, store.users.ensure("local"), [Path(sys.argv[2])])
    for _ in importing:
        print(importing.outcomes.total(), flush=True)
"""


@pytest.mark.parametrize("after", [1, 137])
def test_a_killed_import(path: Path, tmp_path: Path, after: int) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps([gpt_sums(conversation_id=str(number)) for number in range(CHATS)]))
    importer = subprocess.Popen(
        [sys.executable, "-c", IMPORT, str(path), str(file)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert importer.stdout
    while int(importer.stdout.readline()) < after:
        pass
    importer.kill()
    importer.communicate()
    assert importer.returncode != 0
    with Store.open(path) as store:
        user = store.users.ensure("local")
        there = store.chats.find(user, limit=-1)
        assert after <= len(there) < CHATS
        assert {len(store.transfer.export_chat(user, one.id).messages) for one in there} == {5}
        done = imported(store, user, file)
        assert done.outcomes == {"same": len(there), "new": CHATS - len(there)}
        assert len(store.chats.find(user, limit=-1)) == CHATS
