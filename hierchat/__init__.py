"""A private chat on your own machine that decodes speculatively and proves that no word changed.

The engine in a script of one's own, with drafts (`prompt` also takes a list of messages, as OpenAI writes them; `learn`
lets replies draft later ones):

    import hierchat

    model = hierchat.load("smollm2-135m")  # a name of the catalogue, a folder, or a GGUF file
    settings = hierchat.GenerationSettings(max_new_tokens=64, temperature=0.7, seed=1)
    prompt = model.prompt("Name five trees, each with one sentence.")
    request = hierchat.GenerationRequest(prompt, settings)
    plain = [token for step in model.engine.generate(request) for token in step.tokens]
    request = hierchat.GenerationRequest(prompt, settings, model.drafter(settings))
    steps = list(model.engine.generate(request))
    drafted = [token for step in steps for token in step.tokens]
    assert drafted == plain  # drafts make it faster, and change no word
    print(model.text(drafted), f"{len(drafted) / sum(bool(step.tokens) for step in steps):.2f} tokens per forward")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.config import GenerationSettings
    from hierchat.drafting.proposer import Proposer
    from hierchat.engine.engine import Engine, GenerationRequest
    from hierchat.runtime.loading import load

__version__ = "0.2.0.dev0"
"""As wheels have it; CHANGELOG.md says what it brings."""
__all__ = ["ChatService", "Engine", "GenerationRequest", "GenerationSettings", "Proposer", "load"]
_MODULES = {
    "ChatService": "hierchat.chat.service",
    "Engine": "hierchat.engine.engine",
    "GenerationRequest": "hierchat.engine.engine",
    "GenerationSettings": "hierchat.config",
    "Proposer": "hierchat.drafting.proposer",
    "load": "hierchat.runtime.loading",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used first: some take seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
