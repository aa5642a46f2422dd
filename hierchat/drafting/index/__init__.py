"""Kernels over token logs: sorting suffixes, finding them, counting what follows."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
