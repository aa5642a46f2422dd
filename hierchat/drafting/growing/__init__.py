"""Kernels that grow a draft tree: what the databases know (evidence), what that is worth, the tree (grow)."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
