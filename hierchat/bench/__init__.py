"""Measurements: every figure in docs/benchmarks.md comes from a command here."""
