"""Files that are sent with a message: how they are read, and how a prompt holds them."""
