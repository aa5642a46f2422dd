"""What can go wrong with a file of chats, each with a sentence for the user."""

from __future__ import annotations


class TransferError(Exception):
    """Nothing can be brought in or out; the text says what to do."""


class BadChat(Exception):
    """One conversation cannot be read; the text is the reason, as the end of a sentence."""
