"""Choose the runner that computes a loaded model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hierchat.engine import fallback
from hierchat.engine.engine import OutOfMemory, clear_memory_errors
from hierchat.engine.fallback import INEXACT, Implementation, NoImplementation, NotRight, Selected, within
from hierchat.engine.runner import Runner
from hierchat.models.device_memory import or_the_processor
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.load.load_model import LoadedModel
from hierchat.models.progress import DeviceError, DoesNotFitError, Progress, Report, UnsupportedError, silent
from hierchat.models.runnable import graphed, has_kernels, slotted

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
ANSWER_S = 20.0
"""Seconds that a GPU gets for one addition, after a failure."""
IMPLEMENTATIONS = {
    "graphs": "CUDA graphs",
    "slots": "PyTorch's own operations",
    "plain": "transformers alone, without drafts",
    "eager": "transformers alone with its simplest attention, without drafts",
}
"""What a report calls the implementations of a model of transformers, in fallback order."""


def select_implementation(
    loaded: LoadedModel, report: Report = silent, sequences: int = 1, only: str | None = None
) -> Selected:
    """Find the fastest runner that computes the model right, with room for `sequences` if memory allows.
    `only`: the backend to try. Raises DeviceError for a GPU, UnsupportedError or DoesNotFitError for the processor."""
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
        return Selected(runner, "kernels")
    from hierchat.models.load.load_model import FileModule

    try:
        with clear_memory_errors():
            if isinstance(loaded.model, FileModule):
                from hierchat.engine.cuda.packed_modules import in_packed_blocks

                loaded = replace(loaded, model=in_packed_blocks(loaded.model))
            elif has_kernels(loaded.device) and loaded.quantisation == "none":
                from hierchat.engine.cuda.sixteen_bits import with_our_products
                from hierchat.engine.torch.torch_runner import gpu

                with_our_products(loaded.model, gpu(loaded.model.device), loaded.model_key)
    except OutOfMemory as error:
        raise _too_large(loaded) from error
    order = implementations(loaded, sequences)
    if only is None:
        return select_from(loaded, order)
    return select_from(loaded, [one for one in order if one.name == only], keeping=False)


def select_from(loaded: LoadedModel, order: Sequence[Implementation], *, keeping: bool = True) -> Selected:
    """Find the first implementation that computes the model right. Without `keeping`, no record is used or kept."""
    from hierchat.engine.selftest import cache_key, expected, require_agreement, require_right_device
    from hierchat.engine.torch.torch_runner import gpu

    model, device = loaded.model, loaded.model.device
    on_gpu = device.type != "cpu"
    name = gpu(device) or "the processor"
    attempts = None
    if keeping:
        what, made_with = f"{loaded.name}, {loaded.backend}", cache_key("", "", gpu(device))
        record = fallback.AttemptRecord(model=what, device=name, made_with=made_with)
        attempts = fallback.AttemptLog(record, f"{loaded.model_key} {loaded.backend}", gpu=on_gpu)
    limit = fallback.LIMIT_S if on_gpu else None
    failed: Mapping[str, str]
    try:
        within(limit, lambda: require_right_device(device, model.dtype))
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        wanted = within(limit, lambda: expected(model, vocabulary))
        selected = fallback.Selection(
            lambda runner: require_agreement(runner, wanted),
            limit,
            lambda: not on_gpu or _answers(device),
            attempts,
        ).first_of(order)
    except NoImplementation as error:
        failed, raised = error.failed, _failure(loaded, name, error, on_gpu)
    except Exception as error:
        if not on_gpu:
            raise
        log.warning("%s fails", name, exc_info=error)
        failed = {"the GPU itself": str(error) or type(error).__name__}
        raised = DeviceError(f"{name} does not compute as it should ({error}).")
    else:
        if attempts:
            attempts.end(selected.implementation, selected.failed, "" if selected.runner.exact else INEXACT)
        return selected
    if attempts:
        attempts.end("", failed)
    raise raised from None


def implementations(loaded: LoadedModel, sequences: int = 1) -> list[Implementation]:
    """List the implementations that a model allows on its device, fastest first. Making one changes its attention.
    `sequences`: texts that go through a forward together, if an implementation can do that."""
    from hierchat.engine.cuda.packed_modules import is_packed

    model, context, key = loaded.model, loaded.context_length, loaded.model_key
    config, usual = model.config.to_dict(), model.config._attn_implementation

    def graphs() -> Runner:
        from hierchat.engine.cuda.cuda_runner import CudaRunner

        runner = CudaRunner(model, context_length=context, key=key, sequences=sequences)
        if runner.keeps_states and not runner.exact:
            raise NotRight("drafts would change words here")
        return runner

    def slots() -> Runner:
        from hierchat.engine.torch.torch_runner import TorchRunner

        packed = None if loaded.backend == "float16" else False
        return TorchRunner(model, context_length=context, packed=packed, key=key)

    def plain(attention: Any) -> Runner:
        from hierchat.engine.torch.plain import PlainRunner

        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)
        return PlainRunner(model, context_length=context)

    makers: dict[str, Callable[[], Runner]] = {"plain": partial(plain, usual)}
    if slotted(config, loaded.device):
        makers = {"slots": slots} | makers
    if has_kernels(loaded.device) and graphed(config, in_blocks=is_packed(model)):
        makers = {"graphs": graphs} | makers
    if usual != "eager" and not loaded.device.startswith("cpu"):
        makers["eager"] = partial(plain, "eager")
    return [Implementation(name, make, name not in ("plain", "eager")) for name, make in makers.items()]


def remark(selected: Selected) -> str:
    """Explain to the user why nothing faster computes the model; empty where nothing failed."""
    if not selected.failed:
        return ""
    fastest, reason = next(iter(selected.failed.items()))
    return (
        f"It is computed by {IMPLEMENTATIONS[selected.implementation]}: what is faster failed here "
        f"({IMPLEMENTATIONS[fastest]}: {reason})."
    )


def _failure(loaded: LoadedModel, device: str, error: NoImplementation, on_gpu: bool) -> Exception:
    if error.memory and not on_gpu:
        return _too_large(loaded)
    last = list(error.failed.values())[-1] if error.failed else "no way is known"
    if not on_gpu:
        return UnsupportedError(f"{loaded.name} cannot be computed here: {last}.")
    if error.device:
        return DeviceError(f"{device} stopped answering while {loaded.name} was tried ({last}).")
    return DeviceError(f"{device} does not compute {loaded.name} in any way ({last}).")


def _too_large(loaded: LoadedModel) -> DoesNotFitError:
    said = f"Memory ran out while {loaded.name} was tried. Choose a smaller model."
    return DoesNotFitError(said + or_the_processor(loaded.device))


def _answers(device: torch.device) -> bool:
    """Return whether a GPU still computes: after a kernel that hangs it does nothing more."""
    import torch

    def add() -> bool:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return (torch.ones(1, device=device) + 1).item() == 2

    try:
        return within(ANSWER_S, add)
    except Exception:
        return False
