"""A private chat on your own machine that decodes speculatively and proves that no word changed."""

__version__ = "0.2.0.dev0"
"""As wheels have it; CHANGELOG.md says what it brings."""
