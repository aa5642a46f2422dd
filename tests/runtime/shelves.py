"""What tests of the Models view share: speeds without a store, folders of their own, patience."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


class Figures:
    """No store."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[float, int]] = {}

    def speeds(self, user_id: int) -> Mapping[str, tuple[float, int]]:
        return self.known


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HIERCHAT_{name}", str(tmp_path / name.lower()))


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
