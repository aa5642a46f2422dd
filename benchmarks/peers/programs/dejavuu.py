"""Answer by dejavuu: lookup in the prompt, and in the target's own logits."""

from __future__ import annotations

import contextlib
from typing import Any

from .timing import Steps, evened


class DejaVu:
    """Answer by dejavuu over transformers, with the one of its methods that was the fastest here (docs/log.md): the
    prompt and, where that has nothing, the target's own logits. MODEL is a folder.

    The prompt is read anew each time, within the first step.
    """

    packages = ("dejavuu", "transformers", "torch")
    method = "pld_recycle"

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from dejavuu.core.engine import generate  # type: ignore[import-not-found]
        from dejavuu.core.sampling import Sampler  # type: ignore[import-not-found]
        from dejavuu.decoders.hf import HFBackend  # type: ignore[import-not-found]
        from dejavuu.drafters import make_drafter  # type: ignore[import-not-found]

        torch.set_num_threads(options["threads"])
        self.model = HFBackend(model, options["device"], options["dtype"], attn_implementation="sdpa")
        self.generate, self.sampler = generate, Sampler
        self.drafter = make_drafter(self.method)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        most, ends = request["max_new_tokens"], request["end_ids"]
        tokens: list[int] = []
        steps = Steps()
        steps.put(request["prompt"])

        def put(token: int, drafted: bool) -> None:
            tokens.append(token)
            ended = token in ends
            if not drafted or ended or len(tokens) == most:  # the last one of this step
                steps.put(token)
            if ended:
                raise StopIteration  # it takes one end token, and a model may have several

        temperature = request["temperature"]
        sampler = self.sampler(temperature, 1.0, request["seed"]) if temperature > 0 else None
        with contextlib.suppress(StopIteration):
            self.generate(self.model, request["prompt"], most, self.drafter, on_emit=put, sampler=sampler)
        return {"tokens": tokens, **evened(steps.seconds)}
