"""Load a model of the catalogue, ready to compute: on the CPU engine or through transformers."""
