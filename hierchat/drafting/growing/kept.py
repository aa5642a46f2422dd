"""Grow trees and learn over arrays at fixed places, given as one array of addresses.
Numba takes a third of a microsecond for each array of a call, and a tree has more than sixty."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.grow import grow, teach
from hierchat.drafting.growing.kernel_arrays import (
    SLOTS,
    AcceptanceModel,
    Floats,
    Growth,
    Integers,
    Lessons,
    SamplingNoise,
    Scorer,
    borrowed,
    make_growth,
)


class Kept(NamedTuple):
    """Arrays of one reply. `scoring` is the model as this reply's settings change it."""

    growth: Growth
    scoring: AcceptanceModel
    noise_weight: Floats
    model: AcceptanceModel
    prior: AcceptanceModel
    recent: Floats
    curve: NDArray[np.float64]
    matches: NDArray[np.float64]


def addresses(arrays: Any) -> Integers:
    """Return the address and the shape of each array of nested tuples. The caller holds the arrays."""
    if isinstance(arrays, tuple):
        return np.concatenate([addresses(one) for one in arrays])
    assert arrays.flags.c_contiguous
    return np.array([arrays.ctypes.data, *arrays.shape], np.int64)


def _example() -> Kept:
    acceptance, none = Acceptance(), np.zeros(SLOTS, np.float32)
    model, prior = acceptance.model, acceptance.prior
    return Kept(make_growth(0), model, none, model, prior, none, acceptance.curve, acceptance.matches)


KEPT = numba.typeof(_example())


@intrinsic
def _kept(typing: Any, words: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        data, at = context.make_array(words)(context, builder, value=arguments[0]).data, iter(range(1 << 20))

        def word() -> ir.Value:
            return builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), next(at))]))

        def arrays(kind: Any) -> ir.Value:
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [arrays(one) for one in kind.types])
            array = context.make_array(kind)(context, builder)
            size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            pointer = builder.inttoptr(word(), array.data.type)
            shape, strides = [word() for _ in range(kind.ndim)], [ir.Constant(ir.IntType(64), size)]
            for length in shape[:0:-1]:
                strides.insert(0, builder.mul(strides[0], length))
            populate_array(array, pointer, shape, strides, size, None)  # without references to count
            return array._getvalue()

        return arrays(KEPT)

    return KEPT(words), generate


@kernel
def grow_kept(words, key, databases, prices, tail):  # type: ignore[no-untyped-def]
    """Grow a tree as `grow` does. `key`: of the noise, see SamplingNoise."""
    kept = _kept(words)
    scorer = Scorer(kept.scoring, SamplingNoise(key, kept.noise_weight), kept.recent)
    return grow(borrowed(databases), kept.growth, scorer, prices, tail)


@kernel
def teach_kept(words, size, tokens, rate, forget, recency):  # type: ignore[no-untyped-def]
    """Learn as `teach` does. The last three: see Lessons."""
    kept = _kept(words)
    model, prior, recent = kept.model, kept.prior, kept.recent
    lessons = Lessons(model, prior, rate, forget, recent, recency, kept.curve, kept.matches)
    teach(kept.growth, lessons, size, tokens)
