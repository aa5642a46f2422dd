"""What on_arm.sh runs: what test_products.py asks of each block type, for this processor, and, where no types are
named, the self-test of forwards. Ends with an error where one fails."""

import ctypes
import os
import platform
import sys

import llvmlite.binding

FEATURES = {"neon": (16, 1), "dotprod": (16, 20), "i8mm": (26, 13)}
"""Where the kernel tells of them: a word of its auxiliary vector, and a bit of it."""

# In /proc/cpuinfo stand the features of the processor below qemu
has = {name: bool(ctypes.CDLL(None).getauxval(word) >> bit & 1) for name, (word, bit) in FEATURES.items()}
features = llvmlite.binding.get_host_cpu_features()
features.update(has)
llvmlite.binding.get_host_cpu_features = lambda: type(features)(features)
os.environ["HIERCHAT_INSTRUCTIONS"] = wanted = (sys.argv[1:] or [name for name in has if has[name]][-1:])[0]

from hierchat.engine.cpu.runner import trial_runner  # noqa: E402
from hierchat.models.formats.layouts import LAYOUTS  # noqa: E402
from tests.engine.cpu import test_products as products  # noqa: E402

told = ", ".join(name for name in has if has[name])
print(f"{platform.machine()} with {told}: kernels for {wanted}", flush=True)
isa = products.ISAS[wanted]
for name in sys.argv[2:] or LAYOUTS:
    products.test_every_type_agrees_with_float64_for_any_number_of_rows(isa, name)
    print(f"{name}: near float64, the same bits for any number of rows", flush=True)
    if (isa, name) in products.BYTES:
        for largest in (127, 3):
            products.test_int8_gives_the_bits_of_integers(isa, name, largest)
        print(f"{name}, int8: the bits of integers, for any number of rows", flush=True)
if not sys.argv[2:]:
    runner = trial_runner(threads=1)
    print(f"self-test of forwards: {'passed' if runner.exact else 'failed'}", flush=True)
    runner.team.close()
    sys.exit(not runner.exact)
