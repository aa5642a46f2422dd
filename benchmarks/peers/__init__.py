"""Other programs as arms. Each runs in a process of its own (programs/) and answers one JSON line at a time."""
