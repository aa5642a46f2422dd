"""Another program's decoding, in a process of its own: python -P peer.py PROGRAM MODEL OPTIONS.

PROGRAM is transformers, llama.cpp, flashspec or dejavuu. Runs without hierchat, in whatever environment holds it.
OPTIONS is JSON: threads, context; for torch device and dtype; "lookup": draft so many tokens from the prompt; "draft":
folder of a draft model. Says {"versions": {...}} when it is ready, then answers one line per line read:
{"prompt", "max_new_tokens", "temperature", "seed", "end_ids"} -> {"tokens", "seconds", "first_seconds", "peak_mb"};
`seconds` is decoding from the prompt's last token on and `first_seconds` all until the first token, and "forwards"
stands where the program tells; or {"error"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from importlib.metadata import version
from typing import Any


class Transformers:
    """model.generate with a cache that stays from turn to turn. MODEL is a folder.

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
            steps = _Steps()
            with torch.inference_mode():
                out = self.model.generate(ids, generation_config=config, streamer=steps, **self.drafting)
            return {"tokens": out[0, len(prompt) :].tolist(), **_evened(steps.seconds)}
        clock = _Clock()
        with torch.inference_mode():
            common = _common(self.held, prompt[:-1])
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


class LlamaCpp:
    """llama.cpp through llama-cpp-python; its slots stay from turn to turn. MODEL is a GGUF file."""

    packages = ("llama-cpp-python",)

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from llama_cpp import Llama  # type: ignore[import-not-found]

        threads = options["threads"]
        draft = None
        if options.get("lookup"):
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # type: ignore[import-not-found]

            draft = LlamaPromptLookupDecoding(num_pred_tokens=options["lookup"])
        self.llama = Llama(
            model,
            n_ctx=options["context"],
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            logits_all=draft is not None,  # else a prompt longer than a batch does not fit
            verbose=False,
        )

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        llama, prompt = self.llama, request["prompt"]
        llama.set_seed(request["seed"])
        clock = _Clock()
        llama.n_tokens = _common(llama.input_ids[: llama.n_tokens].tolist(), prompt[:-1])
        if llama.n_tokens < len(prompt) - 1:
            llama.eval(prompt[llama.n_tokens : -1])
        clock.read()
        tokens: list[int] = []
        for token in llama.generate(prompt, temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0):
            clock.put(token)
            tokens.append(int(token))
            if token in request["end_ids"] or len(tokens) >= request["max_new_tokens"]:
                break
        clock.end()
        return clock.answer(tokens)


class FlashSpec:
    """flashspec: lookup in the prompt, or with a draft model its default, both. MODEL is a folder.

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
        return {"tokens": tokens, **_evened([took - sum(later), *later])}


class DejaVu:
    """dejavuu over transformers, with the one of its methods that was the fastest here (docs/log.md): the prompt and,
    where that has nothing, the target's own logits. MODEL is a folder.

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
        steps = _Steps()
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
        return {"tokens": tokens, **_evened(steps.seconds)}


class _Steps:
    """Notes how long each step took; the prompt comes first. A streamer to transformers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last: float | None = None

    def put(self, value: Any) -> None:
        now = time.perf_counter()
        if self.last is not None:
            self.seconds.append(now - self.last)
        self.last = now

    def end(self) -> None:
        pass


def _evened(seconds: list[float]) -> dict[str, Any]:
    """Figures of steps of which the first read the prompt as well: it counts as long as the others are on average."""
    first, later = seconds[0], sum(seconds[1:])
    steps = len(seconds)
    return {
        "seconds": later * steps / (steps - 1) if steps > 1 else first,
        "first_seconds": first,
        "forwards": steps,
    }


class _Clock:
    """When the prompt was read, when the first token came, when the last; a streamer to transformers."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]
        self.first: float | None = None

    def read(self) -> None:
        self.marks.append(time.perf_counter())

    def put(self, value: Any) -> None:
        # transformers streams the prompt first, [1, length], then tokens, [1]
        if self.first is None and getattr(value, "ndim", 1) == 1:
            self.first = time.perf_counter()

    def end(self) -> None:
        if len(self.marks) < 3:  # transformers says so, too
            self.marks.append(time.perf_counter())

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        began, read, ended = self.marks
        return {"tokens": tokens, "seconds": ended - read, "first_seconds": (self.first or ended) - began}


def _common(held: list[int], prompt: list[int]) -> int:
    """How many tokens at the beginning need not be read again."""
    for at, (one, other) in enumerate(zip(held, prompt, strict=False)):
        if one != other:
            return at
    return min(len(held), len(prompt))


def peak_mb() -> float | None:
    """The most memory that this process held so far, in megabytes; None where the system does not say."""
    with contextlib.suppress(OSError):  # Linux: its ru_maxrss begins with what the parent held
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1e3, 1)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kilobytes elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes beside the answers, not between them
    kind, model, options = sys.argv[1:]
    kinds: dict[str, Any] = {
        "transformers": Transformers,
        "llama.cpp": LlamaCpp,
        "flashspec": FlashSpec,
        "dejavuu": DejaVu,
    }
    peer = kinds[kind](model, json.loads(options))
    print(json.dumps({"versions": {name: version(name) for name in peer.packages}}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = {**peer.answer(json.loads(line)), "peak_mb": peak_mb()}
        except Exception as error:  # the other side lists it as the reason why this arm is absent
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
