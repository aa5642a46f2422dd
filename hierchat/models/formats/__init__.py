"""What model files hold: GGUF, safetensors, and the quantised blocks that both become for the CPU engine."""
