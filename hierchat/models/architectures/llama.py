"""Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama, Mistral in GGUF files."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(model_type="llama", gguf="llama", norms=NORMS, gguf_pairs_neighbours=True)
