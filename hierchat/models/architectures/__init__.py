"""Describe the architectures that the CPU engine computes, and what each layer of a model has."""
