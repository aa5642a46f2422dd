"""What can fill the page in place of a chat, each with an address of its own (`?view=NAME`)."""
