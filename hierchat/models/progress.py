"""Report progress of a download, conversion or load, one frozen record per change; and what goes wrong with a model."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tqdm.std import tqdm  # type: ignore[import-untyped]

LoadPhase = Literal["downloading", "converting", "loading", "compiling", "reading", "sorting"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress in bytes while downloading or reading, else in tensors: `done` of `total`, None where it is unknown."""

    phase: LoadPhase
    done: int
    total: int | None
    message: str


Report = Callable[[Progress], None]
"""Called from any thread, a few times a second. To cancel, raise an exception class of your own from it."""


def silent(progress: Progress) -> None:
    """Ignore progress: nobody wants to see it."""


def bar_class(
    report: Report, phase: LoadPhase, message: str, *, unit: str = "it", total: int | None = None
) -> type[tqdm]:
    """Make a tqdm class whose bars counting in `unit` report instead of drawing; others are mute."""
    furthest = 0  # of several bars: the hub library counts received and written bytes apart

    class ReportingBar(tqdm):
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

    return ReportingBar


@contextmanager
def transformers_bars(report: Report, phase: LoadPhase, message: str) -> Iterator[None]:
    """Let transformers report its bars, in tensors, instead of drawing them. Holds for the whole process."""
    from transformers.utils import logging

    bars = bar_class(report, phase, message)
    before = logging.set_tqdm_hook(lambda factory, args, kwargs: bars(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


# What can go wrong with a model. Each message says what happened and what to do; show it as it is.
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What computing with the values of a file raises where these make no sense: a number that is text, a size of 0."""


class ModelError(Exception):
    """A model could not be found, fetched, converted or loaded; the text is for the user."""


class CatalogueError(ModelError):
    """models.yaml is wrong; the text names file, model and field."""


class FetchError(ModelError):
    """A model could not be fetched, for a reason that none of the classes below names."""


class GatedError(FetchError):
    """The repository's licence must be accepted first."""


class MissingError(FetchError):
    """There is no such package, repository, revision, folder or file."""


class OfflineError(FetchError):
    """The registry or the hub cannot be reached, or answers that it is out of order (5xx)."""


class BrokenFileError(ModelError):
    """A file is truncated, altered or unreadable."""


class UnsupportedError(ModelError):
    """The files are whole, but are not a causal language model that can be loaded here."""


class DoesNotFitError(ModelError):
    """The model needs more memory than is free; the text says what would fit."""


class DeviceError(ModelError):
    """A GPU does not compute the model as it should, in any way that is known here."""


@contextmanager
def making_sense(name: str) -> Iterator[None]:
    """Raise BrokenFileError if values of a model's files make no sense in what is computed inside."""
    try:
        yield
    except NONSENSE as error:
        why = f" ({error})" if type(error) is ValueError else ""
        raise BrokenFileError(
            f"The files of {name} do not say what model it is{why}. Fetch or copy them again, or choose another model."
        ) from error
