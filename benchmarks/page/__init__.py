"""Measure the page in a real browser, over the real store and without a model."""
