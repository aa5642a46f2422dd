"""Waiting for what happens in another thread."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 60.0
"""Two cores may have much else to do."""


def until(true: Callable[[], Any]) -> None:
    """Wait until this is so."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < give_up, "it did not come"
        time.sleep(0.005)
