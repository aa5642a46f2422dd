"""Days and months for the eye, by the local calendar of this machine."""

from __future__ import annotations

import time
from datetime import date

from hierchat.language import _, later

MONTHS = (
    later("January"), later("February"), later("March"), later("April"), later("May"), later("June"), later("July"),
    later("August"), later("September"), later("October"), later("November"), later("December"),
)  # fmt: skip
_SHORT = (
    later("Jan"), later("Feb"), later("Mar"), later("Apr"), later("May"), later("Jun"), later("Jul"), later("Aug"),
    later("Sep"), later("Oct"), later("Nov"), later("Dec"),
)  # fmt: skip


def day(when: date) -> str:
    """A day of some year."""
    return _("{day} {month}").format(day=when.day, month=_(_SHORT[when.month - 1]))


def month(when: date) -> str:
    """A month with its year."""
    return f"{_(_SHORT[when.month - 1])} {when.year}"


def moment(seconds: float) -> str:
    """A day of some year, and the time; from Unix time."""
    return f"{day(date.fromtimestamp(seconds))}, {time.strftime('%H:%M', time.localtime(seconds))}"


def dated(seconds: float) -> str:
    """The same with the year."""
    when = date.fromtimestamp(seconds)
    return f"{day(when)} {when.year}, {time.strftime('%H:%M', time.localtime(seconds))}"
