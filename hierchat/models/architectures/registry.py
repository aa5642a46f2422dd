"""The architectures that the CPU engine computes. A new one is a file of this folder and a line here."""

from __future__ import annotations

from importlib import import_module

from hierchat.models.architectures.architecture import Architecture

_FILES = (
    "exaone4",
    "gemma2",
    "gemma3",
    "gemma4",
    "glm4",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mistral3",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "seed_oss",
    "smollm3",
)
_ALL: tuple[Architecture, ...] = tuple(
    import_module(f"hierchat.models.architectures.{file}").ARCHITECTURE for file in _FILES
)
ARCHITECTURES = {architecture.model_type: architecture for architecture in _ALL}
"""By transformers' name."""
GGUF_ARCHITECTURES = {architecture.gguf: architecture for architecture in _ALL}
"""By the name in GGUF files."""


def unknown(name: object) -> str:
    """What is wrong with an architecture of another name, and which there are."""
    return f"architecture {name} (known are {', '.join(ARCHITECTURES)})"
