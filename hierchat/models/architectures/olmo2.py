"""OLMo 2: norms behind attention and gate only, and norms of all queries and all keys together."""

from hierchat.models.architectures.architecture import Architecture
from hierchat.models.architectures.names import NORMS_AFTER, QUERY_KEY_NORMS

ARCHITECTURE = Architecture(
    model_type="olmo2",
    gguf="olmo2",
    norms=NORMS_AFTER | QUERY_KEY_NORMS,
)
