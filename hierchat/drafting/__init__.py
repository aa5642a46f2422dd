"""Drafts over token ids: sources, their suffix index and the draft tree. No torch."""
