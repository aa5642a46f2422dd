"""Passwords: what is stored of them is an argon2id hash, from which they can only be guessed, slowly."""

from __future__ import annotations

import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from hierchat.accounts.errors import AccountError

LEAST, MOST = 8, 1_000
"""Characters."""

_HASHER = PasswordHasher()
"""RFC 9106's second choice: 64 MiB and about 0.1 s for each guess."""


def hashed(password: str) -> str:
    """What is stored of a password. Raises AccountError where it is too short or too long."""
    password = _same(password)
    if not LEAST <= len(password) <= MOST:
        raise AccountError(
            f"A password has {LEAST} to {MOST:,} characters. Several words are easy to remember."
        )
    return _HASHER.hash(password)


def matches(password: str, stored: str | None) -> bool:
    """Whether it is the one that `stored` was made from. With None, takes as long and never is: so the time does not
    tell whether there is an account."""
    try:
        return _HASHER.verify(stored or _nobody(), _same(password)) and stored is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _nobody() -> str:
    return _HASHER.hash("nobody's password")


def _same(password: str) -> str:
    """Devices spell an accented letter in two ways, and add blanks when pasting."""
    return unicodedata.normalize("NFC", password).strip()
