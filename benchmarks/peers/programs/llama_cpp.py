"""Answer by llama.cpp: plain decoding, lookup in the prompt, or a draft model."""

from __future__ import annotations

import time
from typing import Any

from .llama_slots import serve
from .timing import Clock, common_prefix


class LlamaCpp:
    """Answer by llama.cpp through llama-cpp-python; its slots stay from turn to turn. MODEL is a GGUF file."""

    packages = ("llama-cpp-python",)

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # type: ignore[import-not-found]

        draft: Any = None
        if options.get("lookup"):
            draft = LlamaPromptLookupDecoding(num_pred_tokens=options["lookup"])
        if options.get("draft"):
            smaller = load(options["draft"], options)
            draft = DraftModel(smaller, options["draft_tokens"], options["draft_sure"])
        self.llama, self.threads = load(model, options, draft), options["threads"]
        self.saved = ""
        """A file with the slots of an earlier process, which the next reply begins with."""
        self.evaluated = 0
        evaluate = self.llama.eval

        def counted(tokens: list[int]) -> None:
            self.evaluated += 1
            evaluate(tokens)

        self.llama.eval = counted

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        llama, prompt = self.llama, request["prompt"]
        llama.set_seed(request["seed"])
        clock = Clock()
        if self.saved:
            self.load()
        hold(llama, prompt[:-1])
        clock.read()
        self.evaluated = 0
        tokens: list[int] = []
        for token in llama.generate(prompt, temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0):
            clock.put(token)
            tokens.append(int(token))
            if token in request["end_ids"] or len(tokens) >= request["max_new_tokens"]:
                break
        clock.end()
        return {**clock.answer(tokens), "forwards": self.evaluated}

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer several users at once (llama_slots.py)."""
        return serve(self.llama, request, self.threads)

    def save(self, request: dict[str, Any]) -> dict[str, Any]:
        """Save the slots to the file "path"."""
        from llama_cpp import llama_cpp as low  # type: ignore[import-not-found]

        llama = self.llama
        held = llama.input_ids[: llama.n_tokens].tolist()
        tokens = (low.llama_token * len(held))(*held)
        return {
            "done": bool(low.llama_state_save_file(llama.ctx, request["path"].encode(), tokens, len(held)))
        }

    def load_at_next(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the next reply load the file "path" first: its time counts."""
        self.saved = request["path"]
        return {}

    def load(self) -> None:
        """Load the saved slots."""
        import ctypes

        from llama_cpp import llama_cpp as low

        llama, path, self.saved = self.llama, self.saved, ""
        tokens, count = (low.llama_token * llama.n_ctx())(), ctypes.c_size_t()
        if low.llama_state_load_file(llama.ctx, path.encode(), tokens, llama.n_ctx(), ctypes.byref(count)):
            llama.n_tokens = count.value
            llama.input_ids[: count.value] = tokens[: count.value]

    def forwards(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time a forward in ms over each of "segments" behind "prompt", with logits for all of its positions."""
        llama = self.llama
        hold(llama, request["prompt"])
        found = []
        for tokens in request["segments"]:
            llama._batch.set_batch(tokens, llama.n_tokens, True)
            began = time.perf_counter()
            llama._ctx.decode(llama._batch)
            llama._ctx.get_logits()  # they are there when the computation is done
            found.append((time.perf_counter() - began) * 1e3)
            if not llama._ctx.kv_cache_seq_rm(-1, llama.n_tokens, -1):
                llama.reset()
                hold(llama, request["prompt"])
        return {"ms": found}

    def reading(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time reading "prompt" into empty slots, in milliseconds."""
        self.llama.n_tokens = 0
        began = time.perf_counter()
        hold(self.llama, request["prompt"])
        self.llama._ctx.get_logits()
        return {"ms": (time.perf_counter() - began) * 1e3}


class DraftModel:
    """Draft the greedy continuation by a smaller model with slots of its own, as llama.cpp's own programs do: at most
    `most` tokens, and none of which the model is less sure than `sure`, counting its TOP likeliest tokens. What
    llama-cpp-python takes as a LlamaDraftModel."""

    TOP = 10

    def __init__(self, llama: Any, most: int, sure: float) -> None:
        self.llama = llama
        self.most = most
        self.sure = sure

    def __call__(self, input_ids: Any, /, **more: Any) -> Any:
        """Return the draft behind `input_ids`, both int32 arrays. What the target did not accept of the last one is
        rolled back."""
        import numpy as np

        llama = self.llama
        hold(llama, input_ids[:-1].tolist())
        token, drafted = int(input_ids[-1]), list[int]()
        while len(drafted) < self.most and llama.n_tokens < llama.n_ctx():
            llama.eval([token])
            logits = last_logits(llama)
            token = int(np.argmax(logits))
            top = np.partition(logits, -self.TOP)[-self.TOP :]
            if 1 / np.exp(top - logits[token]).sum() < self.sure:
                break
            drafted.append(token)
        return np.array(drafted, np.intc)


def load(model: str, options: dict[str, Any], draft: Any = None) -> Any:
    """Load a Llama whose draft model is `draft`."""
    from llama_cpp import Llama
    from llama_cpp import llama_cpp as low

    defaults = low.llama_context_default_params

    def with_snapshots() -> Any:
        """Return parameters with a state of a hybrid for each token of a draft, so that it can be rolled back."""
        wanted = defaults()
        wanted.n_rs_seq = max(options.get("lookup") or 0, options.get("draft_tokens") or 0)
        return wanted

    low.llama_context_default_params = with_snapshots
    llama = Llama(
        model,
        n_ctx=options["context"],
        n_threads=options["threads"],
        n_threads_batch=options["threads"],
        draft_model=draft,
        logits_all=draft is not None,  # room for the logits of every position, which `generate` writes there
        verbose=False,
    )
    low.llama_context_default_params = defaults
    remove = llama._ctx.kv_cache_seq_rm
    # A hybrid's memory refuses to remove from all sequences, and there is one
    llama._ctx.kv_cache_seq_rm = lambda sequence, begin, end: remove(max(sequence, 0), begin, end)
    return llama


def hold(llama: Any, tokens: list[int]) -> None:
    """Put these tokens into the slots: what they hold of them stays, the rest is read. A prompt's own logits are not
    needed, and with drafts llama-cpp-python would compute and copy them all."""
    common = common_prefix(llama.input_ids[: llama.n_tokens].tolist(), tokens)
    if common < llama.n_tokens and not llama._ctx.kv_cache_seq_rm(-1, common, -1):
        llama.reset()  # a hybrid has no state of that place
        common = 0
    llama.n_tokens = common
    if llama.n_tokens == len(tokens):
        return
    of_all, llama._logits_all = llama._logits_all, False
    try:
        llama.eval(tokens[llama.n_tokens :])
    finally:
        llama._logits_all = of_all


def last_logits(llama: Any) -> Any:
    """Return the logits behind the last token that was evaluated, float32 [vocabulary]; valid until the next."""
    import numpy as np

    return np.ctypeslib.as_array(llama._ctx.get_logits_ith(-1), (llama.n_vocab(),))
