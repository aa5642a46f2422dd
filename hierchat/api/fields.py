"""Define the fields that chat and text completions share: model, sampling, and how the reply comes back."""

import secrets
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from hierchat.config import MOST_TOKENS, GenerationSettings
from hierchat.engine.sampling.grammar import bounded

Stop = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(strict=False)]
"""Key of a JSON object, which is a string there."""
Schema = Annotated[dict[str, Any], AfterValidator(bounded)]


class Strict(BaseModel, extra="forbid", allow_inf_nan=False, strict=True):
    """Base of all parts of a request: null fields count as left out; unknown fields and wrong types are refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Sampled(Strict):
    """Base of requests for a completion; sampling that a request leaves open is the model's in the catalogue."""

    model: str = ""
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    # They say who asks, or how others keep it: nothing here depends on them, and none of them is kept.
    user: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    safety_identifier: str = ""
    prompt_cache_key: str = ""
    # Of these, only the value that asks for nothing is understood.
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    repeat_penalty: float | None = Field(None, gt=0, le=10)
    presence_penalty: float | None = Field(None, ge=-10, le=10)
    frequency_penalty: float | None = Field(None, ge=-10, le=10)
    logit_bias: dict[TokenId, float] = Field(default_factory=dict)
    stop: Stop | list[Stop] = Field(default_factory=list)
    max_tokens: int | None = Field(None, ge=1)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def settings(self, usual: GenerationSettings, room: int, grammar: str = "") -> GenerationSettings:
        """Return the generation settings: the request's over `usual`, for a context with `room` tokens left."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty or self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias or None,
            "stop": self.stops or None,
        }
        chosen = usual.model_dump() | {name: value for name, value in given.items() if value is not None}
        chosen["max_new_tokens"] = min(self.most_tokens or room, room, MOST_TOKENS)
        chosen["seed"] = secrets.randbits(32) if self.seed is None else self.seed % 2**63
        return GenerationSettings(**chosen | {"grammar": grammar})
