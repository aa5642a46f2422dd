"""A scripted server, as the terminal's tests have it."""

from tests.cli.conftest import script, url

__all__ = ["script", "url"]
