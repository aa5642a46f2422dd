"""What can be wrong with an account; each is one sentence for the user."""

from __future__ import annotations


class AccountError(Exception):
    """A name or a password that cannot be taken."""
