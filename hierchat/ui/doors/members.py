"""Who may log in: accounts, or, while there are none, whoever has the guest password."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from hierchat.accounts.passwords import matches
from hierchat.store import Account, Store

GUEST_LOGIN = "guest"
"""What everybody who comes by the guest password types as their name."""


@dataclass(frozen=True, slots=True)
class Member:
    """Who gave the right password. `name`: of the user in the store; a guest's is made for this one login."""

    name: str
    account: Account | None = None
    """None: a guest, of whom nothing stays."""


class Members:
    """Over a store. Each call may take a tenth of a second: not for the event loop."""

    def __init__(self, store: Store, guest_password: str) -> None:
        self._store = store
        self._guest_password = guest_password

    def recognise(self, name: str, password: str) -> Member | None:
        """None where name and password do not match. Raises StoreError."""
        if self.guests_come:
            # Both are compared, each in a time that tells nothing.
            pairs = ((name, GUEST_LOGIN), (password, self._guest_password))
            same = [hmac.compare_digest(given.encode(), right.encode()) for given, right in pairs]
            return Member(self._store.begin_guest()) if all(same) else None
        account = self._store.account(name)
        right = matches(password, account.password if account else None)
        return Member(account.name, account) if account and right else None

    def change_password(self, member: Member, stored: str) -> Member:
        """The same with the account as it is now; `stored`: the hash of another password. Raises StoreError."""
        return Member(member.name, self._store.set_password(member.name, stored))

    def still(self, member: Member) -> bool:
        """Whether the password that was given would still do. Raises StoreError."""
        return member.account is None or self._store.account(member.name) == member.account

    @property
    def guests_come(self) -> bool:
        """Whether there are no accounts, so that the guest password counts. Raises StoreError."""
        return not self._store.accounts()
