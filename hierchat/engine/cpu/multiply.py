"""Multiply a matrix of blocks with rows, for modules of transformers (engine/torch/block_linear.py)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.dot import GROUP
from hierchat.engine.cpu.forward import Job, Team
from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.memory import BLOCKS, FLOATS, FORM, INT16, ProductInput, product_input
from hierchat.engine.cpu.phases import COUNTER, NO_CYCLES, ForwardRun, expert_tile, tasks, wait
from hierchat.engine.cpu.rows import PASS_ROWS, ROWS, product, quantise, record
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import BLOCK

Floats = NDArray[np.float32]


def room(rows: int) -> int:
    """Return how many places `rows` rows of one matrix take: a pass computes too many where no kernel has so few."""
    return rows // ROWS * ROWS + int(PASS_ROWS[rows % ROWS])


class Multiplier:
    """Multiply a model's matrices with rows, on threads of its own or of a runner's `team`. A row's bits depend on that
    row alone."""

    def __init__(self, threads: int | None = None, team: Team | None = None) -> None:
        self._team = team or Team(threads)
        self._alone = threading.Lock()
        self._read = product_input(0, BLOCK)
        if team is None:
            weakref.finalize(self, self._team.close)

    def __call__(self, matrix: Blocks, x: Floats, rows: int) -> Floats:
        """Multiply the first `rows` of x [rows, columns] with a matrix: float32 [rows, rows of the matrix]."""
        return self.several(matrix, matrix.rows, [0], [0], [rows], x)[:rows]

    def several(
        self,
        matrix: Blocks,
        outputs: int,
        numbers: Sequence[int],
        begins: Sequence[int],
        counts: Sequence[int],
        x: Floats,
    ) -> Floats:
        """Multiply matrices of `outputs` rows that lie one behind the other: matrix numbers[n] times the rows of x
        [places, columns] from begins[n] on, counts[n] of them; float32 [places, outputs]. `begins` leave `room`."""
        assert x.shape[1] == matrix.columns
        assert x.flags.c_contiguous
        places = max(len(x), begins[-1] + room(counts[-1]))
        out = np.empty((places, outputs), np.float32)
        counters = np.zeros(2 * COUNTER, np.int64)
        entry, which, firsts, rows = (
            np.array(some, np.int64) for some in (record(matrix), numbers, begins, counts)
        )
        with self._alone:
            read, threads = self._with_room(places, matrix.columns), self._team.threads

            def job(rank: int) -> None:
                run = ForwardRun(counters.ctypes.data, threads, rank, NO_CYCLES)
                _multiply(run, entry, outputs, which, firsts, rows, x, read, out)

            self._team.run(job)
        return out

    def share(self, job: Job) -> None:
        """Run another job in all threads of the team, when no product is being computed."""
        with self._alone:
            self._team.run(job)

    def _with_room(self, places: int, columns: int) -> ProductInput:
        """Return buffers for `places` rows of `columns` numbers. A late thread holds those of its own job."""
        groups = places * -(-columns // GROUP)
        if self._read.plain.size < places * columns or self._read.scales.size < groups:
            self._read = product_input(2 * places, columns)
        return self._read


@kernel
def _multiply(run, matrix, outputs, numbers, begins, counts, x, read, out):  # type: ignore[no-untyped-def]
    """Compute Multiplier.several in one thread; every thread of the team calls it. `run` has counters of two phases."""
    places, columns = out.shape[0], matrix[BLOCKS] * BLOCK
    group = 0
    for place in tasks(run.counters, 0, places):
        while group + 1 < begins.shape[0] and begins[group + 1] <= place:
            group += 1
        row, rows = place - begins[group], counts[group]
        if row < rows:
            if matrix[FORM] == FLOATS:
                read.plain[place * columns : (place + 1) * columns] = x[place]
            else:
                quantise(x[place], INT16, begins[group], row, rows, read)
    wait(run, 0, places)
    groups, most = counts.shape[0], counts.max()
    tile = expert_tile(outputs, groups, most, run.threads)
    tiles = (outputs + tile - 1) // tile
    for task in tasks(run.counters, 1, groups * tiles):
        group, first = task // tiles, task % tiles * tile
        begin = begins[group]
        product(
            matrix, numbers[group] * outputs, first, min(first + tile, outputs), begin, counts[group], read,
            out[begin].ctypes.data, outputs * 4,
        )  # fmt: skip
    wait(run, 1, groups * tiles)
