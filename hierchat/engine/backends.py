"""From a loaded model to the runner that computes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hierchat.engine.fallback import INEXACT, LIMIT_S, Landing, NoRung, NotRight, Rung, climb, within
from hierchat.engine.runner import Runner
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.loaded_model import LoadedModel
from hierchat.models.progress import DeviceError, DoesNotFitError, Progress, Report, UnsupportedError, silent
from hierchat.models.runnable import graphed, slotted

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
ANSWER_S = 20.0
"""Seconds that a GPU gets for one addition, after a failure."""
RUNGS = {
    "graphs": "CUDA graphs",
    "rows": "our GPU kernels without graphs",
    "slots": "PyTorch's own operations",
    "plain": "transformers alone, without drafts",
    "eager": "transformers alone with its simplest attention, without drafts",
}
"""From the fastest to the slowest, as one tells it."""
INT8 = "bitsandbytes looks at all rows of a forward to choose the columns of int8 that it computes in half precision"


def make_runner(loaded: LoadedModel, report: Report = silent, sequences: int = 1) -> Runner:
    """The runner alone of what `land` finds."""
    return land(loaded, report, sequences).runner


def land(
    loaded: LoadedModel, report: Report = silent, sequences: int = 1, rung: str | None = None
) -> Landing:
    """The fastest runner that computes the model right, with room for so many sequences if memory allows it.

    Of a model of transformers the ladder is climbed; what came of it is kept (landings.py). `rung`: this one alone, and
    nothing is kept. Raises DeviceError where a GPU computes it in no way; UnsupportedError or DoesNotFitError where the
    processor does not.
    """
    if isinstance(loaded.model, BlockModel):
        from hierchat.engine.cpu.llvm import is_compiled
        from hierchat.engine.cpu.runner import CpuRunner

        if not is_compiled():
            report(
                Progress("compiling", 0, None, "the kernels for this processor, once (about half a minute)")
            )
        runner = CpuRunner(
            loaded.model,
            context_length=loaded.context_length,
            backend=loaded.backend,
            key=loaded.model_key,
            sequences=sequences,
            activations=loaded.activations,
        )
        return Landing(runner, "kernels")
    from hierchat.models.load.load_torch import BlockModule

    if isinstance(loaded.model, BlockModule):
        from hierchat.engine.torch.tiled_experts import over_blocks

        loaded = replace(loaded, model=over_blocks(loaded.model))
    if rung is None:
        return land_over(loaded, rungs(loaded))
    return land_over(loaded, [one for one in rungs(loaded) if one.name == rung], keeping=False)


def land_over(loaded: LoadedModel, ladder: Sequence[Rung], *, keeping: bool = True) -> Landing:
    """The same over a ladder that is given; where not `keeping`, what earlier starts found counts for nothing."""
    from hierchat.engine.fallback import LandingNotes
    from hierchat.engine.selftest import cache_key, expected, require_agreement, require_right_device
    from hierchat.engine.torch.torch_runner import gpu

    model, device = loaded.model, loaded.model.device
    on_gpu = device.type != "cpu"
    name = gpu(device) or "the processor"
    made_with = cache_key("", "", gpu(device))
    notes = LandingNotes(
        f"{loaded.name}, {loaded.backend}",
        f"{loaded.model_key} {loaded.backend}",
        name,
        made_with,
        gpu=on_gpu,
    )
    limit = LIMIT_S if on_gpu else None
    try:
        within(limit, lambda: require_right_device(device, model.dtype))
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        wanted = within(limit, lambda: expected(model, vocabulary))
        landing = climb(
            ladder,
            lambda runner: require_agreement(runner, wanted),
            limit=limit,
            answers=lambda: not on_gpu or _answers(device),
            notes=notes if keeping else None,
        )
    except NoRung as error:
        if keeping:
            notes.fell(dict(error.failed))
        raise _failure(loaded, name, error, on_gpu) from None
    except Exception as error:
        if not on_gpu:
            raise
        log.warning("%s fails", name, exc_info=error)
        if keeping:
            notes.fell({"the GPU itself": str(error) or type(error).__name__})
        raise DeviceError(f"{name} does not compute as it should ({error}).") from None
    if keeping:
        notes.landed(landing, why_inexact(loaded, landing.runner))
    return landing


def rungs(loaded: LoadedModel) -> list[Rung]:
    """The ways that this kind of model allows on its device, the fastest first. Making one changes the model's
    attention."""
    model, context, key = loaded.model, loaded.context_length, loaded.model_key
    config, usual = model.config.to_dict(), model.config._attn_implementation
    if loaded.quantisation == "nf4" and loaded.device.startswith("cuda"):
        from hierchat.engine.cuda.cuda_runner import fuse

        fuse()

    def static(recording: bool) -> Callable[[], Runner]:
        def make() -> Runner:
            from hierchat.engine.cuda.cuda_runner import CudaRunner, Graphs, Out

            graphs: Graphs[Out | None] | None = None if recording else Graphs(capture=None)
            runner = CudaRunner(model, context_length=context, key=key, graphs=graphs)
            if runner.refused:
                raise NotRight(f"no graph could be recorded: {runner.refused}")
            return runner

        return make

    def slots() -> Runner:
        from hierchat.engine.torch.torch_runner import TorchRunner

        packed = None if loaded.backend == "float16" else False
        runner = TorchRunner(model, context_length=context, packed=packed, key=key)
        if runner.keeps_states and not runner.exact:
            raise NotRight("drafts would change words here")
        return runner

    def plain(attention: Any) -> Callable[[], Runner]:
        def make() -> Runner:
            from hierchat.engine.torch.plain import PlainRunner

            if model.config._attn_implementation != attention:
                model.set_attn_implementation(attention)
            return PlainRunner(model, context_length=context)

        return make

    found = []
    if slotted(config, loaded.device):
        if _has_graphs(loaded) and graphed(config, context):
            found += [Rung("graphs", static(True)), Rung("rows", static(False))]
        found.append(Rung("slots", slots))
    found.append(Rung("plain", plain(usual), drafts=False))
    if usual != "eager" and not loaded.device.startswith("cpu"):
        found.append(Rung("eager", plain("eager"), drafts=False))
    return found


def rung_names(device: str) -> list[str]:
    """Of the ways that a device may have for a model without windows, the fastest first."""
    if device.startswith("cpu"):
        return ["slots", "plain"]
    graphs = device.startswith("cuda") and find_spec("triton") is not None
    return list(RUNGS) if graphs else list(RUNGS)[2:]


def remark(landing: Landing) -> str:
    """Why nothing faster computes the model, as a sentence for the user; empty where nothing failed."""
    if not landing.failed:
        return ""
    rung, reason = next(iter(landing.failed.items()))
    return f"It is computed by {RUNGS[landing.rung]}: what is faster failed here ({RUNGS[rung]}: {reason})."


def why_inexact(loaded: LoadedModel, runner: Runner) -> str:
    """Why drafts may change a word at a near tie; empty where they cannot."""
    if runner.exact:
        return ""
    return INT8 if loaded.quantisation == "int8" else INEXACT


def _failure(loaded: LoadedModel, device: str, error: NoRung, on_gpu: bool) -> Exception:
    if error.memory and not on_gpu:
        return DoesNotFitError(f"Memory ran out while {loaded.name} was tried. Choose a smaller model.")
    last = list(error.failed.values())[-1] if error.failed else "no way is known"
    if not on_gpu:
        return UnsupportedError(f"{loaded.name} cannot be computed here: {last}.")
    if error.device:
        return DeviceError(f"{device} stopped answering while {loaded.name} was tried ({last}).")
    return DeviceError(f"{device} does not compute {loaded.name} in any way ({last}).")


def _answers(device: torch.device) -> bool:
    """Whether a GPU still computes: after a kernel that hangs or reads where it must not, it does nothing more for this
    process."""
    import torch

    def add() -> bool:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return (torch.ones(1, device=device) + 1).item() == 2

    try:
        return within(ANSWER_S, add)
    except Exception:
        return False


def _has_graphs(loaded: LoadedModel) -> bool:
    on_cuda = loaded.device.startswith("cuda") and loaded.backend != "int8"
    return on_cuda and find_spec("triton") is not None
