"""What only the owner may do: change which models there are, back up, see and end the logins of others."""

from __future__ import annotations

from hierchat.language import _
from hierchat.store import Store


class OwnerOnly(Exception):
    """The message is for the page."""


def require_owner(store: Store, user_id: int) -> None:
    """Raises OwnerOnly. The user is that of the request, never one that the page names."""
    if not store.is_owner(user_id):
        raise OwnerOnly(_("Only the owner of this hierchat can do that."))
