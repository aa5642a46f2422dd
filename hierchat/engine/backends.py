"""From a loaded model to the runner that computes it."""

from __future__ import annotations

from importlib.util import find_spec

from hierchat.engine.runner import Runner
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.loaded import LoadedModel
from hierchat.models.progress import Progress, Report, silent


def make_runner(loaded: LoadedModel, report: Report = silent, sequences: int = 1) -> Runner:
    """The runner of the backend that the model was loaded for, with room for so many sequences if memory allows it."""
    if isinstance(loaded.model, BlockModel):
        from hierchat.engine.cpu.jit import is_compiled
        from hierchat.engine.cpu.runner import CpuRunner

        if not is_compiled():
            report(
                Progress("compiling", 0, None, "the kernels for this processor, once (about half a minute)")
            )
        return CpuRunner(
            loaded.model,
            context_length=loaded.context_length,
            backend=loaded.backend,
            key=loaded.model_key,
            sequences=sequences,
        )
    if loaded.device.startswith("cuda") and loaded.backend != "int8" and find_spec("triton"):
        from hierchat.engine.cuda.runner import CudaRunner

        return CudaRunner(loaded.model, context_length=loaded.context_length, key=loaded.model_key)
    from hierchat.engine.torch.runner import TorchRunner

    return TorchRunner(
        loaded.model,
        context_length=loaded.context_length,
        packed=None if loaded.backend == "float16" else False,
        key=loaded.model_key,
    )
