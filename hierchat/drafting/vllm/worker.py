"""What the worker classes have in common: they introduce their model runner to the drafter."""

from __future__ import annotations

from typing import Any


class Introduces:
    """Before a worker class of vLLM among the bases."""

    model_runner: Any

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        loaded = super().load_model(*args, **kwargs)  # type: ignore[misc]
        drafter = getattr(self.model_runner, "drafter", None)
        if drafter is not None:  # not without speculation
            drafter.bind(self.model_runner)
        return loaded
