"""What tests of the Models view share: speeds without a store, and patience."""

import time
from collections.abc import Callable, Mapping

from hierchat.store.records import ModelSpeed


class Figures:
    """No store."""

    def __init__(self) -> None:
        self.known: dict[str, ModelSpeed] = {}
        self.wrote: set[str] = set()

    def speeds(self, user_id: int) -> Mapping[str, ModelSpeed]:
        return self.known

    def writers(self) -> set[str]:
        return self.wrote


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
