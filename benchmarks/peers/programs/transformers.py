"""Answer by transformers: plain decoding, lookup in the prompt, or a draft model."""

from __future__ import annotations

from typing import Any

from .timing import Clock, Steps, common_prefix, evened


class Transformers:
    """Answer by model.generate with a cache that stays from turn to turn. MODEL is a folder.

    With drafts, generate takes no cache that holds something: the prompt is read anew, within the first step.
    """

    packages = ("transformers", "torch")

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_num_threads(options["threads"])
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, options["dtype"]), local_files_only=True
        ).to(options["device"])
        self.model.eval()
        self.drafting: dict[str, Any] = {}
        if options.get("lookup"):
            self.drafting = {"prompt_lookup_num_tokens": options["lookup"]}
        if options.get("draft"):
            draft = AutoModelForCausalLM.from_pretrained(
                options["draft"], dtype=self.model.dtype, local_files_only=True
            )
            self.drafting = {"assistant_model": draft.to(options["device"]).eval()}
        self.cache = DynamicCache(config=self.model.config)
        self.held: list[int] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        from transformers import GenerationConfig

        torch, prompt = self.torch, request["prompt"]
        ids = torch.tensor([prompt], device=self.model.device)
        sampled = request["temperature"] > 0
        config = GenerationConfig(
            max_new_tokens=request["max_new_tokens"],
            eos_token_id=request["end_ids"],
            pad_token_id=request["end_ids"][0] if request["end_ids"] else None,
            do_sample=sampled,
            **({"temperature": request["temperature"], "top_k": 0, "top_p": 1.0} if sampled else {}),
        )
        torch.manual_seed(request["seed"])
        if self.drafting:
            steps = Steps()
            with torch.inference_mode():
                out = self.model.generate(ids, generation_config=config, streamer=steps, **self.drafting)
            return {"tokens": out[0, len(prompt) :].tolist(), **evened(steps.seconds)}
        clock = Clock()
        with torch.inference_mode():
            common = common_prefix(self.held, prompt[:-1])
            if len(self.held) > common:
                self.cache.crop(common - len(self.held))
            if common < len(prompt) - 1:
                self.model(ids[:, common:-1], past_key_values=self.cache, logits_to_keep=1)
            clock.read()
            out = self.model.generate(
                ids, past_key_values=self.cache, generation_config=config, streamer=clock
            )
        clock.end()
        tokens = out[0, len(prompt) :].tolist()
        self.held = (prompt + tokens)[: self.cache.get_seq_length()]
        return clock.answer(tokens)
