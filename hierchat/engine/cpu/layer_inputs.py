"""The phases of inputs that layers have of their own, beside the residual stream."""

from __future__ import annotations

from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.phases import done, gated, take, wait
from hierchat.engine.cpu.rows import ONE, added, normalise, quantise


@kernel
def input_phase(counters, phase, rows, inputs):  # type: ignore[no-untyped-def]
    """The token's part of each layer's input takes in the embedding's, normalised (memory.Inputs)."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        for layer in range(inputs.layers.shape[1]):
            part = inputs.projected[row, layer]
            normalise(part, inputs.norm, inputs.epsilon, part)
            added(inputs.layers[row, layer], part, ONE)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def open_phase(counters, phase, rows, layer, shape, work, inputs):  # type: ignore[no-untyped-def]
    """As much of a layer's input as the last product opens becomes what the next product reads."""
    size = inputs.layers.shape[2]
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        plain = work.plain[row * size : (row + 1) * size]
        gates, ups = work.gate[row].ctypes.data, inputs.layers[row, layer].ctypes.data
        gated(shape.activation, gates, ups, size, plain.ctypes.data)
        quantise(plain, 0, row, rows, work)
        done(counters, phase)
    wait(counters, phase, rows)
