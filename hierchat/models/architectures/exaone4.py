"""EXAONE 4: norms as in OLMo 2, but of each head; where layers have windows, those without have no rotary positions."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS_AFTER, QUERY_KEY_NORMS

ARCHITECTURE = Architecture(
    model_type="exaone4",
    gguf="exaone4",
    norms=NORMS_AFTER | QUERY_KEY_NORMS,
    window=True,
    full_every=4,
    full_unrotated=True,
)
