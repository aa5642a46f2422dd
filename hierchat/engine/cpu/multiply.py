"""Multiply a matrix of blocks with rows, for the layer that joins two states (engine/draft_head.py)."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.dot import GROUP
from hierchat.engine.cpu.forward import Team
from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.memory import FORM, ProductInput, product_input
from hierchat.engine.cpu.phases import COUNTER, ForwardRun, product_phase, tasks, wait
from hierchat.engine.cpu.rows import PASS_ROWS, ROWS, quantise, record
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import BLOCK

Floats = NDArray[np.float32]


class Multiplier:
    """Multiplies matrices by rows of activations, on a runner's `team`. The bits of a result depend only on its row."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._alone = threading.Lock()
        self._read = product_input(0, BLOCK)

    def __call__(self, matrix: Blocks, x: Floats) -> Floats:
        """Multiply x [rows, columns] with a matrix; float32 [rows, rows of the matrix]."""
        assert x.shape[1] == matrix.columns
        assert x.flags.c_contiguous
        rows = len(x)
        # A pass computes too many rows if no kernel has so few
        places = rows // ROWS * ROWS + int(PASS_ROWS[rows % ROWS])
        out = np.empty((places, matrix.rows), np.float32)
        counters = np.zeros(2 * COUNTER, np.int64)
        entry = np.array(record(matrix), np.int64)
        with self._alone:
            read, threads = self._with_room(places, matrix.columns), self._team.threads

            def job(rank: int) -> None:
                run = ForwardRun(counters.ctypes.data, threads, rank)
                _multiply(run, entry, x, read, out)

            self._team.run(job)
        return out[:rows]

    def _with_room(self, places: int, columns: int) -> ProductInput:
        groups = places * -(-columns // GROUP)
        if self._read.plain.size < places * columns or self._read.scales.size < groups:
            self._read = product_input(2 * places, columns)
        return self._read


@kernel
def _multiply(run, matrix, x, read, out):  # type: ignore[no-untyped-def]
    rows, columns = x.shape[0], x.shape[1]
    for row in tasks(run.counters, 0, rows):
        plain = read.plain[row * columns : (row + 1) * columns]
        plain[:] = x[row]
        quantise(plain, matrix[FORM], 0, row, rows, read)
    wait(run, 0, rows)
    product_phase(run, 1, matrix, rows, read, out)
