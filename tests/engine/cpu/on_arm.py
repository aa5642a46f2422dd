"""What on_arm.sh runs: int8 against integers to the bit, block types against float64 and int8 against int16, and, where
no types are named, the self-test of forwards. Exits with 1 where one fails."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

import llvmlite.binding

LARGEST_ERROR, OF_INT8 = 2e-5, 5e-3
FEATURES = {"neon": (16, 1), "dotprod": (16, 20), "i8mm": (26, 13)}
"""Where the kernel tells of them: a word of its auxiliary vector, and a bit of it."""

# In /proc/cpuinfo stand the features of the processor below qemu
has = {name: bool(ctypes.CDLL(None).getauxval(word) >> bit & 1) for name, (word, bit) in FEATURES.items()}
features = llvmlite.binding.get_host_cpu_features()
features.update(has)
llvmlite.binding.get_host_cpu_features = lambda: type(features)(features)
os.environ["HIERCHAT_INSTRUCTIONS"] = wanted = (sys.argv[1:] or [name for name in has if has[name]][-1:])[0]

import numpy as np  # noqa: E402

from hierchat.engine.cpu.trial import multiplied, random_rows, trial_product, trial_runner  # noqa: E402
from hierchat.models.formats.blocks import from_file  # noqa: E402
from hierchat.models.formats.layouts import LAYOUTS  # noqa: E402
from tests.engine.cpu.test_products import BYTES, test_int8_gives_the_bits_of_integers  # noqa: E402

told = ", ".join(name for name in has if has[name])
print(f"{platform.machine()} with {told}: kernels for {wanted}", flush=True)
wrong = []
types = sys.argv[2:] or list(LAYOUTS)
eights = {name: isa for isa, name in BYTES if isa.name == wanted and name in types}
for name, isa in eights.items():
    for largest in (127, 3):
        test_int8_gives_the_bits_of_integers(isa, name, largest)
    print(f"{name}, int8: the bits of integers, for any number of rows", flush=True)
for name in types:
    error, same = trial_product(name)
    rows = "the same bits for any number of rows" if same else "other bits for another number"
    print(f"{name}: {error:.0e} from float64, {rows}", flush=True)
    wrong += [] if same and error <= LARGEST_ERROR else [name]
    if name in eights:
        matrix = from_file(name, random_rows(name, 24, 512))
        x = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
        fine, found = multiplied(matrix, x), multiplied(matrix, x, "int8")
        off = np.abs(found - fine).max() / (np.abs(x) @ np.abs(matrix.floats()).T).max()
        same = np.array_equal(multiplied(matrix, x[:1], "int8"), found[:1])
        print(f"{name}, int8: {off:.0e} from int16", flush=True)
        wrong += [] if same and 0 < off <= OF_INT8 else [name]
if sys.argv[2:]:
    sys.exit(bool(wrong))
runner = trial_runner(threads=1)
print(f"self-test of forwards: {'passed' if runner.exact else 'failed'}", flush=True)
runner.team.close()
sys.exit(bool(wrong) or not runner.exact)
