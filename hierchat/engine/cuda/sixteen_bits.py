"""Let our product compute a transformers module's matrices of 16 bits, in place of cuBLAS, where that is no slower.
cuBLAS chooses a kernel by the number of rows; ours sums in one order, so that rows keep their bits in every forward."""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import nn

from hierchat.engine.cuda.graphs import capture
from hierchat.engine.cuda.packed import Packed, plain
from hierchat.engine.cuda.packed_modules import PackedMatrix, is_right, replace_matrices
from hierchat.engine.cuda.row_attention import PROMPT
from hierchat.engine.selftest import SelfTestResult, cache_key, remembered
from hierchat.models.formats.gguf_families import IN_BLOCKS
from hierchat.models.formats.gguf_module import stored

log = logging.getLogger(__name__)
ROWS = {16: 1.0, PROMPT: 2.0}
"""Rows of the products that are timed, of a step with drafts and of a prompt, and how much longer ours may take."""
SEVERAL = 4
"""Matrices of one shape that are timed together: a cache does not hold them all."""
REPEATS = 9
WIDTH = 2
"""Bytes of a weight."""
ROUTERS = (".gate.weight", "router.weight")
"""How names of routers' matrices end."""
KINDS = frozenset(kind for family in IN_BLOCKS.values() for kind in family.kinds)
"""Kinds of modules of which our products are tested."""


def with_our_products(module: Any, device: str | None, key: str | None) -> None:
    """Let our product compute a module on a GPU, if it is right and no slower there. `device`, `key`: names of the GPU
    and the weights, under which the answer is kept."""
    if module.config.get_text_config(decoder=True).model_type not in KINDS:
        return
    kept = key and cache_key(key, f"products of {module.dtype}", device)
    if remembered(kept, partial(_tested, module)).exact:
        use_our_products(module)


def use_our_products(module: nn.Module) -> None:
    """Let our product compute a module's matrices of 16 bits, whatever it takes."""
    made = _matrices(module)

    def packed(name: str) -> list[Packed]:
        """Lay out a tensor, which is freed before the next."""
        return [plain(one.flatten(0, -2)) for one in made.pop(name)]

    replace_matrices(module, dict.fromkeys(made), packed)


def _tested(module: nn.Module) -> SelfTestResult:
    try:
        return SelfTestResult(exact=_pays(module))
    except Exception as error:  # whatever it is, cuBLAS can do it
        log.warning("our products of 16 bits fail", exc_info=error)
        return SelfTestResult(exact=False)


def _pays(module: nn.Module) -> bool:
    """Return whether our products are right, and cuBLAS' over the same matrices not much faster."""
    shapes = defaultdict[tuple[int, int], list[nn.Linear]](list)
    for part in module.modules():
        if _has_16_bits(part):
            shapes[part.out_features, part.in_features].append(part)
    ours, theirs = dict.fromkeys(ROWS, 0.0), dict.fromkeys(ROWS, 0.0)
    for linears in shapes.values():
        some, weight = linears[:SEVERAL], linears[0].weight
        packed = [PackedMatrix(plain(one.weight), one.bias) for one in some]
        if not is_right(packed[0].matrix, weight.dtype):
            return False
        for rows in ROWS:
            x = torch.randn(rows, weight.shape[1], device=weight.device).to(weight.dtype)
            ours[rows] += _ms(packed, x) / len(some) * len(linears)
            theirs[rows] += _ms(some, x) / len(some) * len(linears)
    log.info("milliseconds of products of 16 bits, by rows: %s by our kernel, %s by cuBLAS", ours, theirs)
    return bool(shapes) and all(ours[rows] <= most * theirs[rows] for rows, most in ROWS.items())


def _ms(products: Sequence[nn.Module], x: torch.Tensor) -> float:
    """Time products of these rows on a GPU, as a graph: milliseconds, the median of several."""
    replay = capture(lambda: [one(x) for one in products]).replay
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def _has_16_bits(part: nn.Module) -> TypeGuard[nn.Linear]:
    return type(part) is nn.Linear and part.weight.dtype.itemsize == WIDTH and part.in_features % 32 == 0


def _matrices(module: Any) -> dict[str, list[torch.Tensor]]:
    """Return the matrices that our product can compute by their tensor's name, without a copy."""
    found = dict[str, list[torch.Tensor]]()
    names = {id(tensor): name for name, tensor in stored(module).items()}
    for part in module.modules():
        if isinstance(getattr(part, "down_proj", None), nn.Parameter):
            for stack in (part.gate_up_proj if part.has_gate else part.up_proj, part.down_proj):
                found[names[id(stack)]] = _of_stack(part, stack)
        else:
            name = names.get(id(getattr(part, "weight", None)), "")
            if _has_16_bits(part) or name.endswith(ROUTERS):
                found[name] = [part.weight]
    return found


def _of_stack(experts: Any, stack: torch.Tensor) -> list[torch.Tensor]:
    """Return a stack [experts, outputs, inputs], or two: gates, and what they multiply."""
    gated = experts.has_gate and stack is not experts.down_proj
    stack = stack.transpose(1, 2) if experts.is_transposed else stack
    if not gated:
        return [stack]
    return list(stack.chunk(2, 1)) if experts.is_concatenated else [stack[:, ::2], stack[:, 1::2]]
