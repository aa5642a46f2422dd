"""A scripted server, as the terminal's tests have it."""

from tests.terminal.conftest import script, url

__all__ = ["script", "url"]
