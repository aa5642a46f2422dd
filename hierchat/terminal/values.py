"""Numbers as they are typed, behind a flag or a command."""

from __future__ import annotations

from argparse import ArgumentTypeError
from math import isfinite

from hierchat.config import MOST_TOKENS

_HOTTEST = 10.0
_MOST_SEED = 2**63 - 1


def temperature(text: str) -> float:
    """Raises ArgumentTypeError with a sentence."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= _HOTTEST:
        raise ArgumentTypeError(f"A temperature is a number from 0 to {_HOTTEST:g}, not {text!r}.")
    return value


def minutes(text: str) -> float:
    """Raises ArgumentTypeError with a sentence."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise ArgumentTypeError(f"Minutes are a number above 0, not {text!r}.")
    return value


def seed(text: str) -> int:
    """Raises ArgumentTypeError with a sentence."""
    return _whole(text, "A seed", 0, _MOST_SEED)


def tokens(text: str) -> int:
    """How long a reply may be. Raises ArgumentTypeError with a sentence."""
    return _whole(text, "The longest reply, in tokens,", 1, MOST_TOKENS)


def _whole(text: str, what: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or not least <= int(text) <= most:
        raise ArgumentTypeError(f"{what} is a whole number from {least} to {most:,}, not {text!r}.")
    return int(text)
