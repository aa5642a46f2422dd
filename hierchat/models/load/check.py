"""Check whether a model can run here, before its weights are fetched, unpacked or read."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hierchat.language import later
from hierchat.models import device_memory, runnable
from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Backend, Gguf, ModelEntry
from hierchat.models.fetch.bring import block_bytes, get_gguf, gguf_file, has_blocks, is_fetched, weight_bytes
from hierchat.models.fetch.convert import causal_config, read_config
from hierchat.models.fetch.hub import fetch_beginning, fetch_hub
from hierchat.models.formats.gguf_config import expected_of, gguf_config, require_shapes
from hierchat.models.formats.gguf_families import FAMILIES
from hierchat.models.formats.gguf_head import Head, head_in, joined, read_head, shard_names
from hierchat.models.progress import (
    NONSENSE,
    BrokenFileError,
    FetchError,
    ModelError,
    Report,
    UnsupportedError,
    making_sense,
    silent,
)

CONTEXT = 4096
"""Context length assumed if an entry has none."""
FLOAT_BYTES = 4
"""Bytes of a weight as a float on the CPU engine."""


def by_engine(entry: ModelEntry, device: str, backend: Backend | None) -> bool:
    """Return whether our own CPU engine will compute a model, as far as that is known before it is loaded."""
    if entry.engine:
        return False
    if backend == "blocks":
        return True
    computes = backend is None or (backend == "float32" and not entry.blocks)  # packed blocks are rounded
    if not computes or not device.startswith("cpu") or not has_blocks(entry):
        return False
    if entry.kind:
        return runnable.step_of_kind(entry.kind, own=True) == "kernels"
    gguf = gguf_file(entry.source_on("cpu"))
    return not gguf or _by_kernels(gguf)


def _by_kernels(gguf: Path) -> bool:
    """Return whether our kernels may compute a GGUF file. True if its head says too little: loading it reports why."""
    with suppress(ModelError, *NONSENSE):
        head = read_head(gguf)
        return head.architecture not in FAMILIES or runnable.gguf_step(head, own=True) == "kernels"
    return True


def on_card(entry: ModelEntry, device: str, backend: Backend | None) -> bool:
    """Return whether a GPU will keep the blocks of the model's file, as far as that is known before it is loaded."""
    if entry.engine or backend is not None or not device.startswith("cuda"):
        return False
    source = entry.source_on(device)
    with suppress(ModelError, *NONSENSE):
        if gguf := gguf_file(source):
            return runnable.stays_in_blocks(read_head(gguf), device)
        if entry.kind and (source.gguf or source.wheel):
            return runnable.kind_stays_in_blocks(entry.kind, device, experts=_has_experts(entry))
    return False


def _has_experts(entry: ModelEntry) -> bool:
    """Return whether a token uses only some of the model's weights, as its entry says."""
    size = entry.size
    return bool(size and 0 < size.active < size.parameters - size.looked_up)


def require_runnable(
    entry: ModelEntry,
    device: str | None = None,
    backend: Backend | None = None,
    progress: Report = silent,
    held: int = 0,
) -> None:
    """Raise a ModelError if the model cannot run here. Fetches config.json, or a GGUF file's head, to find out.
    `held`: bytes that will be free when it is loaded."""
    device = device or device_memory.best_device()
    require_memory(entry, device, held, backend)
    engine, source = by_engine(entry, device, backend), entry.source_on(device)
    if gguf := get_gguf(entry, progress, device):
        require_runnable_head(entry, read_head(gguf), device, backend)
        return
    if source.folder and source.folder.path.is_dir():
        folder = source.folder.path
    elif source.hub:
        folder = fetch_hub(source.hub.repo, source.hub.revision, progress, ["config.json"])
    else:
        return
    config = _config(entry, folder, engine)
    with making_sense(entry.name):
        own, through = runnable.unsupported(config), runnable.refused(config)
    _require_one(entry.name, engine, backend, str(config.get("model_type")), own, through)


def require_runnable_head(entry: ModelEntry, head: Head, device: str, backend: Backend | None = None) -> None:
    """Check, reading only its head, that a GGUF file can run here. Raises UnsupportedError, BrokenFileError."""
    with making_sense(entry.name):
        config = gguf_config(head)
        if config["model_type"] in ARCHITECTURES:
            require_shapes(head, expected_of(config, head), entry.name)
        through = runnable.gguf_refused(head, "cpu" if backend else device)
        own = runnable.gguf_unsupported(head)
    engine = by_engine(entry, device, backend)
    _require_one(entry.name, engine, backend, head.architecture, own, through)


def _require_one(
    name: str, engine: bool, backend: Backend | None, kind: str, own: str | None, through: str | None
) -> None:
    if engine and (not own or backend == "blocks"):
        if own:
            raise UnsupportedError(f"The CPU engine does not compute {name}: {own}.")
        return
    if through:
        raise UnsupportedError(
            f"{name} cannot run here. It is a model of the kind {kind}, and {through}. Choose another model."
        )


def with_backend(entry: ModelEntry, backend: Backend | None) -> ModelEntry:
    """Return the entry as if the catalogue named this backend."""
    if backend is None:
        return entry
    if backend == "nf4":
        return entry.model_copy(update={"dtype": "auto", "quantisation": backend})
    dtype = "bfloat16" if backend == "bfloat16" else "float32"  # float16 layers are packed from float32
    return entry.model_copy(update={"dtype": dtype, "quantisation": "none"})


def require_memory(entry: ModelEntry, device: str, held: int = 0, backend: Backend | None = None) -> None:
    """Raise DoesNotFitError if the model is known to be too large. `held`: bytes that will be free by then."""
    if entry.size and (needs := _needs(entry, device, backend)):
        device_memory.require_fit(entry.name, needs, entry.context_length or CONTEXT, held, device)


def _config(entry: ModelEntry, folder: Path, engine: bool) -> Mapping[str, Any]:
    """Read config.json; through transformers if transformers will compute the model."""
    if engine:
        with suppress(OSError, ModelError, *NONSENSE):  # transformers says what is wrong with it
            config = read_config(folder)
            if not runnable.unsupported(config):
                return config
    return causal_config(folder, entry.name).to_dict()


_BEGINNINGS = (4_000_000, 16_000_000, 64_000_000)
"""Bytes of a file's beginning to fetch, in turn: with a large vocabulary the head has ten million and more."""


def require_worth_fetching(
    entry: ModelEntry, device: str, backend: Backend | None = None, progress: Report = silent, held: int = 0
) -> None:
    """Raise a ModelError if the model cannot run here, as far as the hub answers. `held`: freed by then."""
    require_memory(entry, device, held)
    source = entry.source_on(device)
    if source.hub or is_fetched(entry, device):
        require_runnable(entry, device, backend, progress, held)
    elif source.gguf and source.gguf.repo:
        with suppress(FetchError):  # fetching says it, or knows another way
            require_runnable_head(entry, remote_head(source.gguf), device, backend)


def remote_head(gguf: Gguf) -> Head:
    """Read the head of a model in GGUF files on the hub. Raises FetchError, or BrokenFileError."""
    assert gguf.repo
    assert gguf.file
    heads = []
    for name in shard_names(gguf.file):
        for size in _BEGINNINGS:
            data = fetch_beginning(gguf.repo, gguf.revision, name, size)
            head = head_in(data)
            if head or len(data) < size:
                break
        if not head:
            raise BrokenFileError(f"{name} of {gguf.repo} is no GGUF file that can be read here.")
        heads.append(head)
    return joined(heads, gguf.file)


# Whether a model fits this machine, as a word and a reason, without fetching anything.
EASY = 0.75
"""Fraction of the free memory above which a model is a tight fit."""
ROOMY = 0.5
"""Fraction of the machine's memory that a recommended model may use; the rest is for other programs."""
ROOMY_GPU = 0.85
"""Fraction of a GPU's memory that a recommended model may use; other programs use little of it."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a check of memory. `why`: a sentence for the page. `needed`: bytes, None if unknown."""

    verdict: Literal["yes", "tight", "full", "no", "unknown"]
    """full: the machine has enough memory, but other programs use it now."""
    why: str
    needed: int | None = None


def fit(
    entry: ModelEntry,
    device: str,
    backend: Backend | None = None,
    free: int | None = None,
    weights: int | None = None,
) -> Fit:
    """Return whether a model fits into memory. `free`: bytes of memory, by default those that are free now; `weights`:
    bytes of an absent GGUF file."""
    if entry.engine:
        return Fit("yes", later(f"Runs at {entry.engine.openai.url} and takes no memory here."), 0)
    if not (needs := _needs(entry, device, backend, weights)):
        return Fit("unknown", later("How much memory it needs is known once it is here."))
    needed = needs.total(entry.context_length or CONTEXT)
    free = device_memory.free_memory(device) if free is None else free
    total = device_memory.total_memory(device)
    if needed > total:
        said = later(f"Needs {gigabytes(needed)} of memory; this machine has {gigabytes(total)}.")
        return Fit("no", later(f"{said} Choose a smaller model."), needed)
    said = later(f"Needs {gigabytes(needed)} of {gigabytes(min(free, total))} available.")
    if needed > free:
        return Fit("full", later(f"{said} Close other programs to load it."), needed)
    if needed > EASY * free:
        return Fit("tight", later(f"{said} Other programs may become slow."), needed)
    return Fit("yes", said, needed)


def fits_every_day(found: Fit, device: str) -> bool:
    """Return whether a model fits this machine regardless of the memory that other programs use now."""
    share = ROOMY_GPU if device.startswith("cuda") else ROOMY
    return (
        found.verdict != "no"
        and found.needed is not None
        and found.needed <= share * device_memory.total_memory(device)
    )


def _needs(
    entry: ModelEntry, device: str, backend: Backend | None, weights: int | None = None
) -> device_memory.MemoryNeeds | None:
    """Return what a model's weights and positions need; None if neither files nor catalogue tell."""
    size = entry.size
    slot = size.slot if size else 0
    if on_card(entry, device, backend) and (found := weights or weight_bytes(entry, device)):
        return device_memory.needs_on_card(found, slot)
    if not by_engine(entry, device, backend):
        return device_memory.needs_of(with_backend(entry, backend), size, device) if size else None
    found = block_bytes(entry, device, weights)
    if size and backend == "float32":
        found = FLOAT_BYTES * size.parameters
    return device_memory.needs_of_blocks(int(found * (size.held if size else 1)), slot) if found else None


def refusal(entry: ModelEntry, device: str, backend: Backend | None = None) -> str:
    """Return why a model that is here can never run, by its files; empty if it can, or is not here."""
    if entry.engine or not is_fetched(entry, device):
        return ""
    try:
        require_runnable(entry.model_copy(update={"size": None}), device, backend)
    except ModelError as error:
        return str(error)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return later(f"Its files cannot be read ({type(error).__name__}).")
    return ""


# Which step will compute a model, found before anything is fetched.
def expected_step(
    entry: ModelEntry, device: str, backend: Backend | None = None
) -> runnable.ComputePath | None:
    """Return the step that computes a model, by its config.json, catalogue entry or GGUF head; None if unknown."""
    own, source = by_engine(entry, device, backend), entry.source_on(device)
    if on_card(entry, device, backend):
        return "slots"
    with suppress(ModelError, *NONSENSE):
        if source.folder:
            return runnable.step(read_config(source.folder.path), own=own, device=device)
        if entry.kind is not None:
            return runnable.step_of_kind(entry.kind, own=own, device=device, experts=_has_experts(entry))
        if source.gguf and (gguf := gguf_file(source)):
            return runnable.gguf_step(read_head(gguf), own=own, device=device)
    return None
