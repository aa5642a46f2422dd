"""Accounts for the page's login: their passwords, and the command that makes them."""
