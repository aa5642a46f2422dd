"""A language that is made up: English with an accent on each letter, and longer. A word without accents on the page is
one that cannot be translated."""

import gettext
import re
from collections.abc import Iterator
from contextlib import contextmanager

from hierchat import language

CODE = "xx"
_ACCENTS = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "áƀçďéƒğĥíĵķĺɱñóƥɋřšťúѵŵжýžÁƁÇĎÉƑĞĤÍĴĶĹṀÑÓƤɊŘŠŤÚѴŴЖÝŽ",
)
_KEPT = re.compile(r"(\{[^}]*\}|<[^>]*>|\n)")
"""Values and tags."""


class Pseudo(gettext.NullTranslations):
    """The catalogue."""

    def gettext(self, message: str) -> str:
        parts = _KEPT.split(message)
        said = "".join(part if _KEPT.fullmatch(part) else part.translate(_ACCENTS) for part in parts)
        return said + "·" * (len(message) // 4)

    def ngettext(self, one: str, several: str, n: int) -> str:
        return self.gettext(one if n == 1 else several)


@contextmanager
def spoken_here() -> Iterator[str]:
    """There is this language, as long as that lasts; its code."""
    language.catalogues()[CODE] = Pseudo()
    try:
        yield CODE
    finally:
        del language.catalogues()[CODE]
