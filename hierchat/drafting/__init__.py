"""Draft from text: databases, evidence, acceptance model and draft tree; token ids and numpy arrays alone."""
