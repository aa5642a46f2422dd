"""Mistral: Llama, in some versions with a sliding window over all layers."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS

ARCHITECTURE = Architecture(model_type="mistral", gguf="mistral", norms=NORMS, window=True)
