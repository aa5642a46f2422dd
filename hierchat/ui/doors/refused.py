"""A password that did not let anybody in: what is said, and for how long no other is looked at."""

from __future__ import annotations

import math

from hierchat.language import _, plural


class Refused(Exception):
    """`looked_at`: the password was wrong; else it came too early. `wait`: seconds until the next attempt counts."""

    def __init__(self, *, looked_at: bool, wait: float) -> None:
        super().__init__(wait)
        self.seconds = math.ceil(wait)
        self.status = 401 if looked_at else 429
        self._looked_at = looked_at

    def sentence(self, wrong: str) -> str:
        """For the page; `wrong` where the password was looked at."""
        said = wrong if self._looked_at else _("Too many attempts.")
        if not self.seconds:
            return said
        again = plural("Try again in {n} second.", "Try again in {n} seconds.", self.seconds)
        return f"{said} {again}"

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer."""
        return {"Retry-After": str(self.seconds)} if self.seconds else {}
