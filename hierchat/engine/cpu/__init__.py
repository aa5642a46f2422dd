"""Compute decoder models on the CPU from quantised blocks of weights, in kernels of our own."""
