"""The chat's fixtures: what a runtime holds shows in a conversation."""

from ..chat.conftest import _every_step_is_a_frame, talk

__all__ = ["_every_step_is_a_frame", "talk"]
