"""Define the panels: each fills the page in place of a chat, with an address of its own (`?view=NAME`)."""
