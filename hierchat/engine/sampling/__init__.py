"""Choose every token by one rule."""
