"""Qwen2 and Qwen2.5: Llama with biases of queries, keys and values."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(model_type="qwen2", gguf="qwen2", norms=NORMS, biases=("q", "k", "v"))
