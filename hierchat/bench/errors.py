"""What can go wrong with one way of decoding. Each message is for the user."""

from __future__ import annotations

from hierchat.verify.asking.errors import RequestError


class ArmError(RequestError):
    """One arm cannot run here, or can no longer; the others go on."""
