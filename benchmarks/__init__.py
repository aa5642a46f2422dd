"""Measure this machine: figures of a run, ways of decoding that are compared (arms.py, peers/, published/), makers of
what ships (makers/), and the page (page/)."""
