"""Hierarchical speculative decoding: draft models in levels, and the arrangement with the least expected latency.

After Globerson et al., 2025 (arXiv 2510.19705); formulas in expected.py and search.py are our own derivation.
"""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
