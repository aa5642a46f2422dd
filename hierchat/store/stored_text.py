"""Prepare text for the database: titles, search expressions."""

import re

TITLE_CHARACTERS = 60
NUMBER = re.compile(r" \(\d+\)$")
"""Number at the end of a fork's title."""
SEARCH_WORDS = 16
FOUND_BEGINS, FOUND_ENDS = "\x02", "\x03"
"""Marks around the found words of a snippet. A text may contain them itself, so they need not be in pairs."""


def storable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 cannot hold and a browser may send, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def title_of(text: str) -> str:
    """Return one line of a text for the list of conversations, cut between words if it can be."""
    line = " ".join(storable(text).split())
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[:TITLE_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"


def match_expression(query: str) -> str:
    """Return an FTS5 expression for all words of `query`, quoted, the last one as a prefix; empty without words."""
    words = storable(query).replace("\0", " ").split()
    words = [word for word in words if any(map(str.isalnum, word))][:SEARCH_WORDS]
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return " ".join(quoted) + "*" if quoted else ""
