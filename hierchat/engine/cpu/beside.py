"""The phases of layers that have experts beside what others have alone (memory.Beside)."""

from __future__ import annotations

from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.phases import done, take, wait
from hierchat.engine.cpu.rows import ONE, added, normalise, quantise


@kernel
def hold_phase(counters, phase, rows, layer, shape, work, beside):  # type: ignore[no-untyped-def]
    """What the others brought is normalised and held; the residual stream becomes what the router reads."""
    size = shape.hidden
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        normalise(work.out[row], beside.after_dense_norms[layer], shape.epsilon, beside.held[row])
        plain = work.plain[row * size : (row + 1) * size]
        normalise(work.x[row], beside.router_norms[layer], shape.epsilon, plain)
        quantise(plain, 0, row, rows, work)
        done(counters, phase)
    wait(counters, phase, rows)


@kernel
def join_phase(counters, phase, rows, layer, shape, work, beside):  # type: ignore[no-untyped-def]
    """What the experts brought is normalised, and takes in what is held."""
    while True:
        row = take(counters, phase)
        if row >= rows:
            break
        normalise(work.out[row], beside.after_expert_norms[layer], shape.epsilon, work.out[row])
        added(work.out[row], beside.held[row], ONE)
        done(counters, phase)
    wait(counters, phase, rows)
