"""Control access to page and endpoint: hosts and origins, login, limits, files on their way."""
