"""Measurements of this machine (measure/), the ways of decoding that they compare (arms/, peers/, published/), and what
becomes of the figures (figures/)."""
