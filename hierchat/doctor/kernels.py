"""The kernels of the CPU engine, tried."""

from __future__ import annotations

from hierchat.doctor.finding import Finding
from hierchat.engine.cpu.jit import is_compiled, kernel
from hierchat.models.formats.layouts import LAYOUTS

LARGEST_ERROR = 2e-5
"""Of a product, against float64; activations are rounded to 16 bits."""
_ADVICE = (
    "Delete the folder `kernels` in the cache, so that they are compiled anew. If it stays so, set "
    "HIERCHAT_INSTRUCTIONS=generic and report it."
)


def kernels() -> list[Finding]:
    """A product of each block type against float64, and the self-test of whole forwards."""
    before = "were compiled" if is_compiled() else "had to be compiled"
    try:
        from hierchat.engine.cpu.trial import trial_product, trial_runner

        found = [Finding(f"kernels {before}: {kernel.folder.name}")]
        for name in LAYOUTS:
            error, same = trial_product(name)
            right = same and error <= LARGEST_ERROR
            rows = "the same bits at every height" if same else "other bits at another height"
            found.append(Finding(f"{name}: {error:.0e} from float64, {rows}", "" if right else _ADVICE))
        runner = trial_runner()
        runner.team.close()
    except Exception as error:  # whatever keeps them from running belongs into the report
        return [Finding(f"kernels cannot run: {type(error).__name__}", _ADVICE)]
    said = "passed" if runner.exact else "failed"
    return [*found, Finding(f"self-test of forwards: {said}", "" if runner.exact else _ADVICE)]
