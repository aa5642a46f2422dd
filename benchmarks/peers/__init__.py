"""Run other programs as arms, each in a process of its own (programs/) that answers one JSON line at a time."""
