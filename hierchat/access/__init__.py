"""What stands before the page: which addresses and which pages it answers to, and who is logged in."""
