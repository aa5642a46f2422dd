"""Families of GGUF files that transformers' modules compute and its own reader of such files does not read."""
