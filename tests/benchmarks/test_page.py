"""benchmarks page and soak: a real browser from the command line to the file, and the visits of a soak."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.__main__ import main
from benchmarks.page import browser, scripted
from hierchat.store import Store
from hierchat.texts.importing import Import
from tests.testing import browser as driving
from tests.testing.fake_service import make


@pytest.mark.browser
@pytest.mark.large
def test_figures_of_all_that_is_waited_for(tmp_path: Path) -> None:
    if browser.chromium() is None:
        pytest.skip("no Chromium: install it, or set HIERCHAT_CHROMIUM")
    out = tmp_path / "out.json"
    asked = ["page", "--messages", "20", "--megabytes", "1", "--repeats", "1", "--json", str(out)]
    # In a process of its own: a thread can run no second Playwright beside that of other tests.
    command = [sys.executable, "-m", "benchmarks", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    said = json.loads(out.read_text())
    for visit in said["opening"].values():
        assert 0 < visit["first_paint_ms"]["median"] <= visit["usable_ms"]["median"]
    for chat in said["chats"].values():
        assert chat["open_ms"]["most"] > 0
    assert said["import"]["chats"] * scripted.PER_CHAT == said["import"]["messages"] > 1000
    for seen in said["streaming"].values():
        # A figure that gains a digit moves what stands beside it; a line of the page is worth ten times as much.
        assert min(seen["server_cores"], seen["browser_cores"]) > 0
        assert seen["layout_shift"] < 1e-3, [one for one in seen["shifts"] if one["outside"]]


def test_without_what_drives_the_browser_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert main(["page", "--json", str(tmp_path / "out.json")]) == 2
    assert "pip install 'hierchat[bench]'" in capsys.readouterr().err


def test_the_made_up_chats_are_chats(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    chats, messages = scripted.write_conversations(path, 100_000)
    assert 100_000 <= path.stat().st_size < 130_000
    with Store.open(tmp_path / "a.db") as store:
        user = store.users.ensure("ann")
        importing = Import(store, user, [path])
        list(importing)
        assert (importing.taken, importing.messages, importing.bad) == (chats, messages, 0)
        long = scripted.add_chat(store, user, "Long", 12)
        assert len(store.messages.path(user, long)) == 12


def test_a_visit_does_all_of_it_and_leaves_no_chat(tmp_path: Path) -> None:
    service = make(tmp_path)
    service.script.seconds = 1
    with driving.serving(service, ("0", soak._PASSWORD)) as address:
        did = Counter(soak._visits(address, "0", count(2)))
    assert did == {
        "visits": 1, "replies": 2, "searches": 2, "views": 4, "comparisons": 1, "vanished": 1, "log-outs": 1,
    }  # fmt: skip
    assert service.store.chats.find(service.store.users.ensure("0")) == []
