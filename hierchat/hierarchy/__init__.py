"""Decode with a hierarchy of draft models after Globerson et al., 2025 (arXiv 2510.19705), with formulas of our own."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
