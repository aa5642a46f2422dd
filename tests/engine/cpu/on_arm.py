"""What on_arm.sh runs: each block type against float64, and the self-test of forwards. Exits with 1 where one fails."""

from __future__ import annotations

import os
import platform
import sys

import llvmlite.binding

LARGEST_ERROR = 2e-5

os.environ["HIERCHAT_INSTRUCTIONS"] = wanted = sys.argv[1]
if wanted == "neon":  # qemu shows the features of the processor below it
    features = llvmlite.binding.get_host_cpu_features()
    features["neon"] = True
    llvmlite.binding.get_host_cpu_features = lambda: features

from hierchat.engine.cpu.trial import trial_product, trial_runner  # noqa: E402
from hierchat.models.formats.layouts import LAYOUTS  # noqa: E402

print(platform.machine(), wanted, flush=True)
wrong = []
for name in LAYOUTS:
    error, same = trial_product(name)
    rows = "the same bits for any number of rows" if same else "other bits for another number"
    print(f"{name}: {error:.0e} from float64, {rows}", flush=True)
    wrong += [] if same and error <= LARGEST_ERROR else [name]
runner = trial_runner(threads=1)
print(f"self-test of forwards: {'passed' if runner.exact else 'failed'}", flush=True)
runner.team.close()
sys.exit(bool(wrong) or not runner.exact)
