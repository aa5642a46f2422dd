"""Programs over clients from the package index, unmodified. Each is run in an environment of the clients' own, with the
endpoint's address and a key, and prints what it got as JSON."""
