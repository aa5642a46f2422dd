"""Compute a whole forward of the decoder, or a single product, in all threads of a team at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from hierchat.drafting.growing.kernel_arrays import borrowed
from hierchat.engine.cpu import memory, phases, states
from hierchat.engine.cpu.dot import GROUP
from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.memory import CHUNK, DOWN, FORM, GATE, ROUTER, UP, K, O, Q, V
from hierchat.engine.cpu.phases import (
    PHASES,
    norm_phase,
    product_phase,
    product_tasks,
    product_wait,
    row_tasks,
)
from hierchat.engine.cpu.rows import ONE, PASS_ROWS, ROWS, quantise, record
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import BLOCK


@kernel
def experts(run, phase, rows, layer, shape, weights, work, chosen, dense):  # type: ignore[no-untyped-def]
    """Compute a layer's routed experts: router, choice, gate, up and down projections, weighted sum."""
    matrices, routed, inner, hidden = weights.matrices[layer], work.routed, shape.inner, shape.hidden
    gate, up, down = matrices[GATE], matrices[UP], matrices[DOWN]
    product_phase(run, phase + phases.ROUTE, matrices[ROUTER], rows, work.input, routed.scores)
    biases, scales = weights.router_biases[layer], weights.expert_scales[layer]
    phases.choose_phase(run, phase + phases.CHOOSE, rows, shape, biases, scales, routed, chosen)
    if dense is not None and dense.expert_norms.shape[1]:
        none, norm, forms = weights.last_norm[:0], dense.expert_norms[layer], gate[FORM] | up[FORM]
        norm_phase(run, phase + phases.EXPERT_NORM, rows, shape, work, forms, none, none, norm, False, ONE)
    used, most = phases.grouped(rows, shape, routed, chosen, run.rank)
    phases.gather_phase(run, phase + phases.GATHER, rows, shape, work, gate[FORM] | up[FORM], chosen)
    if gate[memory.MATRIX_ROWS]:
        phases.expert_tasks(run, phase + phases.EXPERT_GATE, gate, inner, used, most, routed, routed.gate)
    phases.expert_tasks(run, phase + phases.EXPERT_UP, up, inner, used, most, routed, routed.up)
    if gate[memory.MATRIX_ROWS]:
        phases.expert_wait(run, phase + phases.EXPERT_GATE, inner, used, most)
    phases.expert_wait(run, phase + phases.EXPERT_UP, inner, used, most)
    gate_biases, up_biases = weights.gate_biases[layer], weights.up_biases[layer]
    phases.expert_gate_phase(
        run, phase + phases.ACTIVATE, rows, shape, down[FORM], gate_biases, up_biases, routed, chosen
    )
    phases.expert_tasks(run, phase + phases.EXPERT_BACK, down, hidden, used, most, routed, routed.out)
    phases.expert_wait(run, phase + phases.EXPERT_BACK, hidden, used, most)
    phases.add_phase(run, phase + phases.ADD, rows, shape, weights.down_biases[layer], work, chosen)
    if dense is not None:
        phases.join_phase(run, phase + phases.JOIN, rows, layer, shape, work, dense)


@kernel
def dense_mlp(run, phase, rows, layer, shape, weights, work, dense):  # type: ignore[no-untyped-def]
    """Compute the dense MLP that a layer has beside its routed experts."""
    matrices = weights.matrices[layer]
    gate, up, down = matrices[memory.DENSE_GATE], matrices[memory.DENSE_UP], matrices[memory.DENSE_DOWN]
    scale = matrices[memory.DENSE_SCALE]
    row_tasks(run, phase + phases.DENSE_SCALE, scale, rows, work.input, dense.gates)
    phases.gate_up_phase(run, phase + phases.DENSE_GATE_UP, gate, up, down[FORM], rows, shape, work)
    product_phase(run, phase + phases.DENSE_BACK, down, rows, work.inner, work.out)
    product_wait(run, phase + phases.DENSE_SCALE, scale, rows)
    opened, forms = scale[memory.MATRIX_ROWS] > 0, matrices[ROUTER, FORM]
    phases.hold_phase(run, phase + phases.HOLD, rows, layer, shape, work, forms, dense, opened)


@kernel
def make_inputs(run, phase, rows, shape, weights, work, inputs):  # type: ignore[no-untyped-def]
    """Compute the per-layer inputs of all layers out of the embeddings in work.x (memory.Inputs)."""
    none, matrix = weights.last_norm[:0], weights.matrices[shape.layers, K]
    norm_phase(
        run, phase + phases.EMBEDDING_NORM, rows, shape, work, matrix[FORM], none, none, none, False, ONE
    )
    projected = inputs.projected.reshape(inputs.projected.shape[0], -1)
    product_phase(run, phase + phases.EMBEDDING_PRODUCT, matrix, rows, work.input, projected)
    phases.input_phase(run, phase + phases.EMBEDDING_ADD, rows, inputs)


@kernel
def add_input(run, phase, rows, layer, shape, weights, work, inputs):  # type: ignore[no-untyped-def]
    """Add a layer's per-layer input to the residual stream, as far as the product behind it."""
    matrices, none, norm = weights.matrices[layer], weights.last_norm[:0], weights.after_inner_norms[layer]
    gate, out = matrices[memory.LAYER_GATE], matrices[memory.LAYER_OUT]
    norm_phase(run, phase + phases.INPUT_NORM, rows, shape, work, gate[FORM], none, norm, none, True, ONE)
    product_phase(run, phase + phases.INPUT_GATE, gate, rows, work.input, work.gate)
    phases.open_phase(run, phase + phases.INPUT_OPEN, rows, layer, shape, work, out[FORM], inputs)
    product_phase(run, phase + phases.INPUT_BACK, out, rows, work.input, work.out)


@kernel
def attend(  # type: ignore[no-untyped-def]
    run, phase, rows, wanted, layer, shapes, weights, slots, work, identity, texts, chunks
):
    """Compute a layer's attention of the first `wanted` rows, up to its output product; keys and values of all."""
    kind = weights.kinds[layer]
    shape, kept, qkv, places = shapes[kind], slots[kind], work.qkv[kind], work.places[kind]
    size = shape.head_dim
    every = texts.rows[-1]
    attended = work.attended[: every * shape.heads * chunks * (size + 2)]
    attended = attended.reshape(every, shape.heads, chunks, size + 2)
    wide = qkv.shape[1] * size * 4
    query = np.int64(qkv.ctypes.data)
    key = query + shape.heads * size * 4
    value = key + shape.kv_heads * size * 4
    matrices, window = weights.matrices[layer], weights.windows[layer]
    gates = matrices[memory.Q_GATE]
    product_tasks(run, phase + phases.QUERY, matrices[Q], rows, work.input, query, wide)
    product_tasks(run, phase + phases.KEY, matrices[K], rows, work.input, key, wide)
    product_tasks(run, phase + phases.VALUE, matrices[V], rows, work.input, value, wide)
    row_tasks(run, phase + phases.ATTENTION_GATE, gates, rows, work.input, work.gates)
    product_wait(run, phase + phases.QUERY, matrices[Q], rows)
    product_wait(run, phase + phases.KEY, matrices[K], rows)
    product_wait(run, phase + phases.VALUE, matrices[V], rows)
    product_wait(run, phase + phases.ATTENTION_GATE, gates, rows)
    phases.place_phase(run, phase + phases.PLACE, rows, texts, shape, weights, kept, qkv, work, layer)
    if not wanted:
        return
    phases.attention_phase(
        run, phase + phases.ATTENTION, wanted, texts, shape, window, kept, qkv, places, work,
        weights.slots[layer], identity, attended,
    )  # fmt: skip
    sinks, forms = weights.sinks[layer], matrices[O, FORM]
    phases.merge_phase(
        run,
        phase + phases.MERGE,
        wanted,
        shape,
        window,
        sinks,
        work,
        gates[memory.MATRIX_ROWS],
        forms,
        attended,
    )


@kernel
def recur(run, phase, rows, wanted, layer, weights, work, running):  # type: ignore[no-untyped-def]
    """Compute a layer with a running state, as far as its output product, which is of the first `wanted` rows."""
    # Borrowed: the threads would wait for each other to count references.
    shape, own, kept, buffers, texts = borrowed(running)
    matrices, number = weights.matrices[layer], weights.slots[layer]
    short = shape.kind == memory.CONVOLUTION
    mixed = buffers.mixed if short else buffers.records
    mix, z, beta, alpha = (
        matrices[memory.MIX],
        matrices[memory.Z],
        matrices[memory.BETA],
        matrices[memory.ALPHA],
    )
    row_tasks(run, phase + phases.MIX, mix, rows, work.input, mixed)
    row_tasks(run, phase + phases.Z, z, rows, work.input, buffers.gates)
    row_tasks(run, phase + phases.BETA, beta, rows, work.input, buffers.rates)
    row_tasks(run, phase + phases.ALPHA, alpha, rows, work.input, buffers.steps)
    product_wait(run, phase + phases.MIX, mix, rows)
    product_wait(run, phase + phases.Z, z, rows)
    product_wait(run, phase + phases.BETA, beta, rows)
    product_wait(run, phase + phases.ALPHA, alpha, rows)
    if short:
        states.value_phase(run, phase + phases.INPUTS, rows, shape, buffers)
    states.mix_phase(run, phase + phases.CONVOLVE, rows, texts, number, shape, own, kept, buffers)
    if not short:
        states.state_phase(run, phase + phases.ADVANCE, texts, number, shape, own, kept, buffers)
    forms = matrices[O, FORM]
    states.leave_phase(
        run, phase + phases.LEAVE, rows, wanted, texts, number, shape, own, kept, buffers, work.input, forms
    )


@kernel
def forward(  # type: ignore[no-untyped-def]
    run, shapes, weights, slots, work, identity, texts, wanted, chosen, dense, inputs, running, logits
):
    """Compute the logits of blocks whose embeddings stand in work.x and whose paths in work.order (attention.lay_out).

    `run`: phases.ForwardRun, with a counter for each phase of each layer, and one. `shapes` and `slots`: of each kind
    of layers (memory.Shape, memory.KeyValues). `identity` int32 [CHUNK], the numbers from 0 on. `texts` (memory.Texts):
    the sequences that the blocks belong to, one behind the other. `logits` float32 [rows padded to ROWS, vocabulary]:
    those of the first rows. Of the first `wanted` rows, as many or more, the hidden states are left in
    work.input.plain; of the others only keys and values are wanted. `chosen` int64 [layers, rows, active]: the experts
    that each row is routed to are written here; None where layers have none. `dense`, `inputs`, `running`:
    memory.DenseMlp, memory.Inputs, memory.Running, or None. No other forward may use any of these. Every thread of the
    team calls it; it returns when all is done."""
    layers, last_kept = shapes[0].layers, shapes[0].last_kept
    rows = texts.rows[-1]
    chunks = 0
    for text in range(texts.starts.shape[0]):
        width = texts.rows[text + 1] - texts.rows[text]
        chunks = max(chunks, (texts.starts[text] + width - 1) // CHUNK + 1)
    none = weights.last_norm[:0]
    if inputs is not None:
        make_inputs(run, layers * PHASES, rows, shapes[0], weights, work, inputs)
    adding = False
    for layer in range(layers):
        phase = layer * PHASES
        matrices = weights.matrices[layer]
        mixer = weights.mixers[layer]
        if mixer != memory.NO_MIXER:
            before, norm = weights.leaving_norms[max(layer - 1, 0)], weights.attention_norms[layer]
            factor = weights.scales[layer - 1] if layer else ONE
            forms = matrices[Q, FORM] | matrices[K, FORM] | matrices[V, FORM] | matrices[memory.Q_GATE, FORM]
            forms |= matrices[memory.MIX, FORM] | matrices[memory.Z, FORM]
            forms |= matrices[memory.BETA, FORM] | matrices[memory.ALPHA, FORM]
            norm_phase(
                run, phase + phases.NORM, rows, shapes[0], work, forms, none, before, norm, adding, factor
            )
            needed = wanted if layer == last_kept else rows
            if mixer == memory.ATTENTION:
                attend(run, phase, rows, needed, layer, shapes, weights, slots, work, identity, texts, chunks)
            elif running is not None:  # else nothing of states is compiled
                recur(run, phase, rows, needed, layer, weights, work, running)
            rows = needed
            if not rows:
                return
            product_phase(run, phase + phases.OUTPUT, matrices[O], rows, work.input, work.out)
            adding = True
        before, norm = weights.after_attention_norms[layer], weights.inner_norms[layer]
        bias, gate, up, down = weights.output_biases[layer], matrices[GATE], matrices[UP], matrices[DOWN]
        if not up[memory.MATRIX_ROWS]:
            continue
        forms = gate[FORM] | up[FORM] | matrices[memory.DENSE_GATE, FORM] | matrices[memory.DENSE_UP, FORM]
        forms |= matrices[ROUTER, FORM] | matrices[memory.DENSE_SCALE, FORM]
        norm_phase(
            run, phase + phases.INNER_NORM, rows, shapes[0], work, forms, bias, before, norm, adding, ONE
        )
        adding, shape = True, shapes[0]
        if dense is not None and matrices[memory.DENSE_UP, memory.MATRIX_ROWS]:
            dense_mlp(run, phase, rows, layer, shape, weights, work, dense)
        if chosen is not None and matrices[ROUTER, memory.MATRIX_ROWS]:  # else nothing of experts is compiled
            experts(run, phase, rows, layer, shape, weights, work, chosen[layer], dense)
            continue
        phases.gate_up_phase(run, phase + phases.GATE_UP, gate, up, down[FORM], rows, shape, work)
        product_phase(run, phase + phases.BACK, down, rows, work.inner, work.out)
        if inputs is not None:  # the same
            add_input(run, phase, rows, layer, shape, weights, work, inputs)
    shape, phase = shapes[0], layers * PHASES
    head = weights.matrices[layers, Q]
    before, factor = weights.leaving_norms[layers - 1], weights.scales[layers - 1]
    norm, forms = weights.last_norm, head[FORM]
    norm_phase(run, phase + phases.HEAD_NORM, rows, shape, work, forms, none, before, norm, True, factor)
    if not logits.shape[0]:
        return
    product_phase(run, phase + phases.HEAD, head, min(rows, logits.shape[0]), work.input, logits)
    if shape.logit_cap:
        phases.cap_phase(run, phase + phases.CAP, rows, shape.logit_cap, logits)


Job = Callable[[int], Any]
"""Called by every thread with its rank, 0 for the one that asks; must return in all threads once all is done."""


def cores() -> int:
    """Count the processor cores that this process may use; a second thread of the same core brings nothing."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


class Team:
    """Runs jobs in `threads` threads, the caller one of them. A late helper finds the work done and sleeps on."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or cores()
        self._bells = [threading.Semaphore(0) for _ in range(self.threads - 1)]
        self._job: Job | None = None
        self._closed = False
        for rank, bell in enumerate(self._bells, 1):
            threading.Thread(target=self._help, args=(rank, bell), daemon=True, name=f"engine {rank}").start()

    def run(self, job: Job) -> None:
        """Run `job` in all threads, and return when it is done."""
        self._job = job
        self._ring()
        try:
            job(0)
        finally:
            self._job = None

    def close(self) -> None:
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.release()

    def _help(self, rank: int, bell: threading.Semaphore) -> None:
        while not self._closed:
            bell.acquire()
            while bell.acquire(blocking=False):  # only the latest job matters
                pass
            job = self._job
            if job is not None:
                job(rank)
            del job


class Multiplier:
    """Multiplies matrices by rows of activations, on a runner's `team`. The bits of a result depend only on its row."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._alone = threading.Lock()
        self._read = memory.product_input(0, BLOCK)

    def __call__(self, matrix: Blocks, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Multiply x [rows, columns] with a matrix; float32 [rows, rows of the matrix]."""
        assert x.shape[1] == matrix.columns
        assert x.flags.c_contiguous
        rows = len(x)
        # A pass computes too many rows if no kernel has so few
        places = rows // ROWS * ROWS + int(PASS_ROWS[rows % ROWS])
        out = np.empty((places, matrix.rows), np.float32)
        counters = np.zeros(2 * phases.COUNTER, np.int64)
        entry = np.array(record(matrix), np.int64)
        with self._alone:
            groups = places * -(-matrix.columns // GROUP)
            if self._read.plain.size < places * matrix.columns or self._read.scales.size < groups:
                self._read = memory.product_input(2 * places, matrix.columns)
            read, threads = self._read, self._team.threads

            def job(rank: int) -> None:
                run = phases.ForwardRun(counters.ctypes.data, threads, rank)
                _multiply(run, entry, x, read, out)

            self._team.run(job)
        return out[:rows]


@kernel
def _multiply(run, matrix, x, read, out):  # type: ignore[no-untyped-def]
    rows, columns = x.shape[0], x.shape[1]
    for row in phases.tasks(run.counters, 0, rows):
        plain = read.plain[row * columns : (row + 1) * columns]
        plain[:] = x[row]
        quantise(plain, matrix[FORM], 0, row, rows, read)
    phases.wait(run, 0, rows)
    product_phase(run, 1, matrix, rows, read, out)
