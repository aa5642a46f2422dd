"""Decide who may log in: accounts, or, while there are none, whoever has the guest password."""

import hmac
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from hierchat.store import Account, Store


class AccountError(Exception):
    """Raised for a name or a password that an account cannot have."""


# Passwords: what is stored of them is an argon2id hash, from which they can only be guessed, slowly.
LEAST, MOST = 8, 1_000
"""Characters."""

_HASHER = PasswordHasher()
"""RFC 9106's second choice: 64 MiB and about 0.1 s for each guess."""


def hashed(password: str) -> str:
    """Hash a password for the store. Raises AccountError if it is too short or too long."""
    password = _same(password)
    if not LEAST <= len(password) <= MOST:
        raise AccountError(
            f"A password has {LEAST} to {MOST:,} characters. Several words are easy to remember."
        )
    return _HASHER.hash(password)


def matches(password: str, stored: str | None) -> bool:
    """Return whether `stored` is a hash of this password. None takes as long, so that time does not reveal accounts."""
    with suppress(VerificationError, InvalidHashError):
        return _HASHER.verify(stored or _nobody(), _same(password)) and stored is not None
    return False


@cache
def _nobody() -> str:
    return _HASHER.hash("nobody's password")


def _same(password: str) -> str:
    return unicodedata.normalize("NFC", password).strip()


GUEST_LOGIN = "guest"
"""What everybody who comes by the guest password types as their name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A person who has logged in. `name`: of the user in the store; a guest's is made for this one login."""

    name: str
    account: Account | None = None
    """None: a guest, of whom nothing stays."""


class Members:
    """Checks names and passwords against a store. Each call may take a tenth of a second: not for the event loop."""

    def __init__(self, store: Store, guest_password: str) -> None:
        self._store = store
        self._guest_password = guest_password

    def recognise(self, name: str, password: str) -> Member | None:
        """Return the member with this name and password; None if they do not match. Raises StoreError."""
        if self.guests_come:
            # Both are compared, each in a time that tells nothing.
            pairs = ((name, GUEST_LOGIN), (password, self._guest_password))
            same = [hmac.compare_digest(given.encode(), right.encode()) for given, right in pairs]
            return Member(self._store.guests.begin()) if all(same) else None
        account = self._store.accounts.find(name)
        right = matches(password, account.password if account else None)
        return Member(account.name, account) if account and right else None

    def change_password(self, member: Member, stored: str) -> Member:
        """Store the hash of another password, and return the member with its new account. Raises StoreError."""
        return Member(member.name, self._store.accounts.set_password(member.name, stored))

    def still(self, member: Member) -> bool:
        """Tell whether the account with which a member logged in still has that password. Raises StoreError."""
        return member.account is None or self._store.accounts.find(member.name) == member.account

    @property
    def guests_come(self) -> bool:
        """Return True while there are no accounts, so that the guest password counts. Raises StoreError."""
        return not self._store.accounts.all()
