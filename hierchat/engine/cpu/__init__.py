"""The CPU engine: a decoder computed on quantised blocks, in kernels of our own.

From below: jit (processor, compiler), dot (block times row), rows, products, attention, forward, team, target.
"""
