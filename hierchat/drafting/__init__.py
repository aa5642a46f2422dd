"""Our drafter inside other engines: each folder is loaded by that engine, in its own environment."""
