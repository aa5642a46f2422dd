"""Kernels that grow a draft tree: what the databases hold (evidence), then chances and the tree (grow)."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
