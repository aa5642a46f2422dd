"""Access control in front of page and endpoint: hosts and origins, login, limits, files on their way."""
