"""llama.cpp: plain decoding, or lookup in the prompt."""

from __future__ import annotations

from typing import Any

from .timing import Clock, common_prefix


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
        clock = Clock()
        llama.n_tokens = common_prefix(llama.input_ids[: llama.n_tokens].tolist(), prompt[:-1])
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
