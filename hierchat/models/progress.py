"""How far a download, a conversion or a load has come: one frozen record per change, for terminal and
page.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tqdm.std import tqdm  # type: ignore[import-untyped]

Phase = Literal["downloading", "converting", "loading", "compiling", "reading", "sorting"]


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes while downloading or reading, else tensors; `total` is None where it is unknown."""

    phase: Phase
    done: int
    total: int | None
    message: str


Report = Callable[[Progress], None]
"""Called from any thread, a few times a second. To cancel, raise an exception class of your own from it."""


def silent(progress: Progress) -> None:
    """The report that nobody reads."""


def bar_class(
    report: Report, phase: Phase, message: str, *, unit: str = "it", total: int | None = None
) -> type[tqdm]:
    """A tqdm class whose bars counting in `unit` report instead of drawing; others are mute.

    Several bars of one class report the furthest of them (the hub library counts received and written bytes
    apart).
    """
    furthest = 0

    class Bar(tqdm):
        monitor_interval = 0  # no watching thread: nothing is drawn

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # the hub library's own addition
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            nonlocal furthest
            if self.unit == unit:
                furthest = max(furthest, int(self.n))
                report(Progress(phase, furthest, total or self.total or None, message))
            return True

    return Bar


@contextmanager
def transformers_bars(report: Report, phase: Phase, message: str) -> Iterator[None]:
    """Has transformers report its bars, in tensors, instead of drawing them. Holds for the whole process."""
    from transformers.utils import logging

    bars = bar_class(report, phase, message)
    before = logging.set_tqdm_hook(lambda factory, args, kwargs: bars(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
