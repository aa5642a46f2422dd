"""Kernels that grow a draft tree: what the databases hold (evidence), chances (acceptance_model), the tree (grow)."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
