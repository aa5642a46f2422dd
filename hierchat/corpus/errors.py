"""What can go wrong with a corpus. Each message is one line that says what happened and what to do."""

from __future__ import annotations


class CorpusError(Exception):
    """A corpus cannot be built, found or removed; nothing was changed."""
