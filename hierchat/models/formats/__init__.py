"""Read model files: GGUF, safetensors, and the quantised blocks that both become for the CPU engine."""
