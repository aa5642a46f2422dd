"""Grow a draft tree in kernels: look up what the databases hold (evidence), then estimate chances (grow)."""

from hierchat.jit import Kernels

kernel = Kernels(__file__)
