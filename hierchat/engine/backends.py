"""From a loaded model to the runner that computes it."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from hierchat import logs
from hierchat.engine.runner import Runner
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.loaded import LoadedModel
from hierchat.models.progress import Progress, Report, silent
from hierchat.models.runnable import graphed, slotted

log = logging.getLogger(__name__)


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
    return _of_transformers(loaded)


def _of_transformers(loaded: LoadedModel) -> Runner:
    """The fastest runner that this kind of model allows; one that fails in its self-test gives way to the next."""
    model, context = loaded.model, loaded.context_length
    config, usual = model.config.to_dict(), model.config._attn_implementation
    if slotted(config):
        try:
            if _has_graphs(loaded) and graphed(config, context):
                from hierchat.engine.cuda.runner import CudaRunner

                return CudaRunner(model, context_length=context, key=loaded.model_key)
            from hierchat.engine.torch.runner import TorchRunner

            packed = None if loaded.backend == "float16" else False
            runner = TorchRunner(model, context_length=context, packed=packed, key=loaded.model_key)
            if runner.exact or not runner.keeps_states:
                return runner
            log.warning("%s is computed without drafts: they would change words here", loaded.name)
            model.set_attn_implementation(usual)
        except (TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
            log.warning("%s is computed without drafts: %s", loaded.name, logs.said(error))
            model.set_attn_implementation(usual)
    from hierchat.engine.torch.plain import PlainRunner

    return PlainRunner(model, context_length=context)


def _has_graphs(loaded: LoadedModel) -> bool:
    on_cuda = loaded.device.startswith("cuda") and loaded.backend != "int8"
    return on_cuda and find_spec("triton") is not None
