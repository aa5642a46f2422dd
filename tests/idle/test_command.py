"""`hierchat learn`: for a user who is there, up to the limit, stopped cleanly, and the next call goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat import idle_generation
from hierchat.cli.main import main
from hierchat.store import LOCAL_USER, IdleSettings, Store

from .conftest import ASKED, make_served

DONE = {one.key: len(one.turns) for one in ASKED if one.key != "k3"}


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command over a tiny model; its exit code."""
    monkeypatch.setattr("hierchat.runtime.loading.load_served_model", lambda entry, *a, **n: make_served())

    def run(*flags: str) -> int:
        return main(["learn", "--db", str(tmp_path / "learning.db"), *flags])

    return run


def test_it_writes_and_goes_on_where_it_was_stopped(
    learn: Any, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user = store.users.ensure(LOCAL_USER)
    steps = [0]
    step = idle_generation.Writer._step

    def interrupted(made: idle_generation.Writer) -> None:
        steps[0] += 1
        if steps[0] == 15:
            os.kill(os.getpid(), signal.SIGINT)
        step(made)

    monkeypatch.setattr(idle_generation.Writer, "_step", interrupted)
    assert learn("--minutes", "100") == 0
    assert steps[0] <= 16
    kept = store.generated.size(user)
    assert kept.tokens > 0
    assert store.generated.replies(user, "key of tiny") != DONE
    assert f"There are {kept.tokens:,} tokens of it now" in capsys.readouterr().out
    assert learn() == 0
    assert store.generated.replies(user, "key of tiny") == DONE


def test_what_it_refuses(learn: Any, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    user = store.users.ensure("ann")
    assert learn("--user", "nobody") == 1
    assert "There is no user 'nobody'" in capsys.readouterr().err
    assert "nobody" not in store.users.ids()
    store.users.set_drafts_from(user, "chat")
    assert learn("--user", "ann") == 1
    assert "was chosen in Settings" in capsys.readouterr().err
    store.users.set_drafts_from(user, "all")
    store.users.set_idle_settings(user, IdleSettings(False, 10.0, 1))
    assert learn("--user", "ann") == 0
    assert 1 <= store.generated.size(user).tokens < 10
    assert learn("--user", "ann") == 1
    assert "as much for itself as is allowed" in capsys.readouterr().err
    assert learn("--minutes", "0") == 2
