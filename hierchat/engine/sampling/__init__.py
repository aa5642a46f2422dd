"""The one rule that chooses every token."""
