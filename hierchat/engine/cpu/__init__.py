"""The CPU engine: a decoder computed on quantised blocks, in kernels of our own."""
