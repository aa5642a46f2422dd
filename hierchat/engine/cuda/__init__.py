"""Run the target on CUDA: forwards recorded as graphs, attention row by row."""
