"""What keeps `hierchat chat` from answering."""


class TerminalError(Exception):
    """The text is for the user."""
