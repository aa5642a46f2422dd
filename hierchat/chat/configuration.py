"""One side of a comparison: which model, what drafts for it, and how it is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import ValidationError

from hierchat.chat.frames import Arm
from hierchat.config import GenerationSettings
from hierchat.language import _, later
from hierchat.runtime.drafting_choice import ALL, Databases, Drafting

FROM = {
    "none": later("nothing"),
    "chat": later("this chat"),
    "replies": later("this chat and your earlier ones"),
    "texts": later("this chat, your earlier ones and texts"),
}
"""What `Databases` are called on the page."""
WITHOUT, WITH = later("Without drafts"), later("With drafts")


class WrongConfiguration(ValueError):
    """Values that make no configuration. The message is for the page."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One side. None and an empty name: as it is in force."""

    model: str = ""
    drafting: Drafting = field(default=ALL)
    temperature: float | None = None
    seed: int | None = None

    def settings(self, now: GenerationSettings) -> GenerationSettings:
        """Those in force with what this side changes. Raises WrongConfiguration."""
        changed = {"temperature": self.temperature, "seed": self.seed}
        given = {name: value for name, value in changed.items() if value is not None}
        try:
            return GenerationSettings(**{**now.model_dump(), **given})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            limit = _("between 0 and 10") if name == "temperature" else _("a whole number, at least 0")
            raise WrongConfiguration(
                _("The {name} of a comparison must be {limit}.").format(name=name, limit=limit)
            ) from error

    @property
    def name(self) -> str:
        """For the eye: what is special about it."""
        drafting = self.drafting
        parts = [self.model] if self.model else []
        if drafting.nothing:
            parts.append(_(WITHOUT))
        elif drafting.databases == "none":
            parts.append(_("Drafts from draft models alone"))
        elif drafting != ALL:
            models = "" if drafting.draft_models else _(", no draft models")
            parts.append(
                _("Drafts from {texts}{models}").format(texts=_(FROM[drafting.databases]), models=models)
            )
        if self.temperature is not None:
            parts.append(_("temperature {temperature:g}").format(temperature=self.temperature))
        if self.seed is not None:
            parts.append(_("seed {seed}").format(seed=self.seed))
        return ", ".join(parts) or _(WITH)

    def record(self) -> dict[str, Any]:
        """For a file: `configuration` makes the same of it."""
        return {
            "model": self.model,
            "databases": self.drafting.databases,
            "draft_models": self.drafting.draft_models,
            "temperature": self.temperature,
            "seed": self.seed,
        }


Pair = Mapping[Arm, Configuration]
USUAL: Pair = {
    "first": Configuration(drafting=Drafting("none", draft_models=False)),
    "second": Configuration(),
}
"""Without drafts, against with them."""


def configuration(given: Mapping[str, Any]) -> Configuration:
    """From what a form or a file says; what is missing is as in force. Raises WrongConfiguration."""
    databases: Databases = given.get("databases", "texts")
    if not isinstance(databases, str) or databases not in get_args(Databases):
        raise WrongConfiguration(_("A comparison drafts from nothing, this chat, earlier chats or texts."))
    temperature, seed = given.get("temperature"), given.get("seed")
    try:
        made = Configuration(
            str(given.get("model") or ""),
            Drafting(databases, bool(given.get("draft_models", True))),
            None if temperature in (None, "") else float(str(temperature)),
            None if seed in (None, "") else int(str(seed)),
        )
    except ValueError as error:
        raise WrongConfiguration(
            _("Temperature and seed of a comparison must be numbers, the seed a whole one.")
        ) from error
    made.settings(GenerationSettings())
    return made


def names(pair: Pair) -> dict[Arm, str]:
    """What both are called, told apart."""
    first, second = pair["first"].name, pair["second"].name
    if first == second:
        return {"first": f"{first} (1)", "second": f"{second} (2)"}
    return {"first": first, "second": second}
