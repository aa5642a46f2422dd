"""A private chat on your own machine that decodes speculatively and proves that no word changed."""

__version__ = "0.1.0"
