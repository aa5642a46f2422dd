"""What a server elsewhere could not do."""

from __future__ import annotations

from hierchat.models.errors import ModelError


class ServerError(ModelError):
    """The text is for the user."""


class Refused(ServerError):
    """The server answered with an error. `said`: its own words, empty where it gave none."""

    def __init__(self, text: str, status: int, said: str) -> None:
        super().__init__(text)
        self.status = status
        self.said = said
