"""Answer by flashspec: lookup in the prompt, or a draft model."""

from __future__ import annotations

import time
from typing import Any

from .timing import evened


class FlashSpec:
    """Answer by flashspec: lookup in the prompt, or with a draft model its default, both. MODEL is a folder.

    The prompt is read anew each time, within the first step.
    """

    packages = ("flashspec", "transformers", "torch")

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig  # type: ignore[import-not-found]
        from flashspec.engine import (  # type: ignore[import-not-found]
            HuggingFaceDrafter,
            NgramDrafter,
            SpeculativeEngine,
            TargetModel,
        )
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(options["threads"])
        device, dtype = torch.device(options["device"]), getattr(torch, options["dtype"])

        def load(folder: str) -> Any:
            return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).to(device)

        drafters: list[Any] = [NgramDrafter()]
        plan: dict[str, Any] = {"drafter_strategy": "bandit", "bandit": BanditConfig(n_arms=1)}
        if folder := options.get("draft"):
            drafters, plan = [HuggingFaceDrafter(folder, device, dtype, model=load(folder))], {}
        target = TargetModel(model, device, dtype, model=load(model))
        self.torch = torch

        def engine(temperature: float, seed: int) -> Any:
            for drafter in drafters:
                if hasattr(drafter, "set_temperature"):
                    drafter.set_temperature(temperature)
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            return SpeculativeEngine(
                FlashSpecConfig(device=str(device), sampling=sampling, **plan), drafters, target
            )

        self.engine = engine

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        ids = self.torch.tensor([request["prompt"]])
        engine = self.engine(request["temperature"], request["seed"])
        began = time.perf_counter()
        done = engine.generate(ids, request["max_new_tokens"], request["end_ids"])
        took = time.perf_counter() - began
        later = [step.seconds for step in done.arm_steps[1:]]
        tokens = done.output_ids[0, : done.n_tokens_generated].tolist()
        return {"tokens": tokens, **evened([took - sum(later), *later])}
