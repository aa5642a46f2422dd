"""Qwen3: Llama with norms of each head's queries and keys."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS, QUERY_KEY_NORMS

ARCHITECTURE = Architecture(model_type="qwen3", gguf="qwen3", norms=NORMS | QUERY_KEY_NORMS)
