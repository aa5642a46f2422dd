"""Whether a model can run here, found out before its weights are fetched, unpacked or read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Backend, Gguf, ModelEntry, read_catalogue
from hierchat.models.device_memory import (
    best_device,
    blocks_needed,
    bytes_needed,
    dtype_on,
    free_memory,
    require_blocks_fit,
    require_fit,
    total_memory,
)
from hierchat.models.fetch.bring import block_bytes, get_gguf, has_blocks, is_fetched, weight_bytes
from hierchat.models.fetch.convert import blocks_folder, is_converted
from hierchat.models.fetch.folder import causal_config, read_config
from hierchat.models.fetch.hub import fetch_beginning, fetch_hub
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_families import FAMILIES, KINDS
from hierchat.models.formats.gguf_head import Head, head_in, joined, read_head, shard_names
from hierchat.models.progress import (
    NONSENSE,
    BrokenFileError,
    DoesNotFitError,
    FetchError,
    ModelError,
    Report,
    UnsupportedError,
    silent,
)
from hierchat.models.runnable import (
    Step,
    gguf_refused,
    gguf_step,
    gguf_unsupported,
    refused,
    step,
    step_of_kind,
    unsupported,
)

LEAST_BYTES, FLOAT_BYTES = 0.53, 4
"""Per weight on the CPU engine: in blocks of 4 bits, unless its files are smaller, and where all become floats."""


def by_engine(entry: ModelEntry, device: str, backend: Backend | None) -> bool:
    """Tell whether our own CPU engine shall compute a model, if it can, or at least its matrices; otherwise
    transformers does."""
    if entry.engine:
        return False
    if backend == "blocks":
        return True
    if not device.startswith("cpu") or not has_blocks(entry):
        return False
    if through_modules(entry):
        return backend is None
    if entry.kind and step_of_kind(entry.kind, own=True) != "kernels":
        return False
    return backend is None or (backend == "float32" and not entry.blocks)  # packed blocks are rounded


def through_modules(entry: ModelEntry) -> bool:
    """Tell whether a processor computes transformers' module over our kernels, as far as that is known beforehand."""
    source = entry.source_on("cpu")
    if entry.kind or not (source.gguf and is_fetched(entry, "cpu")):
        return entry.kind in KINDS and bool(source.gguf or source.wheel)
    with suppress(ModelError):
        gguf = get_gguf(entry, device="cpu")
        return gguf is not None and read_head(gguf).architecture in FAMILIES
    return False


def require_runnable(
    entry: ModelEntry,
    device: str | None = None,
    backend: Backend | None = None,
    progress: Report = silent,
    held: int = 0,
) -> None:
    """Raises a ModelError where the model cannot run here. Of a repository, config.json alone is fetched to find out;
    of a model in one GGUF file, that file, whose head is read. `held`: bytes that will be free when it is loaded.
    """
    device = device or best_device()
    engine = by_engine(entry, device, backend)
    _require_memory(entry, device, backend, engine, held)
    own: str | None
    if gguf := None if engine and _is_unpacked(entry, device) else get_gguf(entry, progress, device):
        head = read_head(gguf)
        own, through = _refusals(entry.name, head)
    elif folder := _folder_with_config(entry, device, progress):
        config = _config(entry, folder, engine)
        with _sense(entry.name):
            own, through = unsupported(config), refused(config)
    else:
        return
    kind = head.architecture if gguf else config.get("model_type")
    _require_one(entry.name, engine, backend, str(kind), own, through)


def require_runnable_head(entry: ModelEntry, head: Head, device: str, backend: Backend | None = None) -> None:
    """Check that a GGUF file can run here of which the head alone is here. Raises UnsupportedError."""
    engine = by_engine(entry, device, backend)
    _require_one(entry.name, engine, backend, head.architecture, *_refusals(entry.name, head))


def _refusals(name: str, head: Head) -> tuple[str | None, str | None]:
    """Return why our own kernels cannot compute a GGUF file, and why transformers cannot. Raises BrokenFileError."""
    with _sense(name):
        gguf_config(head)
        through = gguf_refused(head)
        return through if head.architecture in FAMILIES else gguf_unsupported(head), through


@contextmanager
def _sense(name: str) -> Iterator[None]:
    """Guard what is computed with the values of a model's files. Raises BrokenFileError where these make no sense."""
    try:
        yield
    except NONSENSE as error:
        raise BrokenFileError(
            f"The files of {name} do not say what model it is. Fetch or copy them again, or choose another model."
        ) from error


def _require_one(
    name: str, engine: bool, backend: Backend | None, kind: str, own: str | None, through: str | None
) -> None:
    """Raises UnsupportedError where neither our own engine nor transformers can compute it."""
    if engine and (not own or backend == "blocks"):
        if own:
            raise UnsupportedError(f"The CPU engine does not compute {name}: {own}.")
        return
    if through:
        raise UnsupportedError(
            f"{name} cannot run here. It is a model of the kind {kind}, and {through}. Choose another model."
        )


def require_memory(entry: ModelEntry, device: str, held: int = 0) -> None:
    """Raises DoesNotFitError where the catalogue knows that the model is too large for this machine. `held`: as
    above."""
    _require_memory(entry, device, None, by_engine(entry, device, None), held)


def with_backend(entry: ModelEntry, backend: Backend | None) -> ModelEntry:
    """Return the entry as if the catalogue named this backend."""
    if backend is None:
        return entry
    if backend in ("nf4", "int8"):
        return entry.model_copy(update={"dtype": "auto", "quantisation": backend})
    dtype = "bfloat16" if backend == "bfloat16" else "float32"  # float16 layers are packed from float32
    return entry.model_copy(update={"dtype": dtype, "quantisation": "none"})


def _require_memory(entry: ModelEntry, device: str, backend: Backend | None, engine: bool, held: int) -> None:
    """Raises DoesNotFitError where the catalogue knows the size, and that it is too large."""
    if not (size := entry.size):
        return
    if engine:
        least = FLOAT_BYTES * size.parameters
        if backend != "float32":
            least = min(int(LEAST_BYTES * size.parameters), weight_bytes(entry, device) or least)
        least = int(least * size.held)
        modules = through_modules(entry)
        require_blocks_fit(entry.name, least, size.slot, entry.context_length or 0, held, modules=modules)
        return
    asked = with_backend(entry, backend)
    try:
        require_fit(asked, size, entry.context_length or 0, device, held=held)
    except DoesNotFitError:
        # Only now read the others, to name those that would fit.
        others = read_catalogue().models.values()
        require_fit(asked, size, entry.context_length or 0, device, others, held)


def _is_unpacked(entry: ModelEntry, device: str) -> bool:
    """Tell whether the blocks of a model from a wheel lie ready: then it can run, and the file itself may be gone."""
    wheel = entry.source_on(device).wheel
    return wheel is not None and is_converted(blocks_folder(wheel.sha256))


def _folder_with_config(entry: ModelEntry, device: str, progress: Report) -> Path | None:
    source = entry.source_on(device)
    if source.folder:
        return source.folder.path if source.folder.path.is_dir() else None
    if source.hub:
        return fetch_hub(source.hub.repo, source.hub.revision, progress, ["config.json"])
    return None


def _config(entry: ModelEntry, folder: Path, engine: bool) -> Mapping[str, Any]:
    """Read config.json. Where transformers computes, it is transformers that reads it."""
    if engine:
        try:
            config = read_config(folder)
            if not unsupported(config):
                return config
        except (OSError, ModelError, *NONSENSE):
            pass  # transformers says what is wrong with it
    return causal_config(folder, entry.name).to_dict()


# What keeps a model from running, asked of the hub before its weights are fetched: config.json, or the head
# of a GGUF file.


_BEGINNINGS = (4_000_000, 16_000_000, 64_000_000)
"""Bytes that are asked for in turn: of a large vocabulary, the head takes some ten million."""


def require_worth_fetching(
    entry: ModelEntry,
    device: str,
    backend: Backend | None = None,
    progress: Report = silent,
    held: int = 0,
) -> None:
    """Raises a ModelError where the model cannot run here. What the hub does not answer is found out later.
    `held`: bytes that will be free when it is loaded."""
    require_memory(entry, device, held)
    source = entry.source_on(device)
    if source.hub or is_fetched(entry, device):
        require_runnable(entry, device, backend, progress, held)
    elif source.gguf and source.gguf.repo:
        with suppress(FetchError):  # fetching says it, or knows another way
            require_runnable_head(entry, remote_head(source.gguf), device, backend)


def remote_head(gguf: Gguf) -> Head:
    """Read the head of a GGUF file on the hub, or of all that are one model. Raises BrokenFileError, MissingError,
    GatedError, OfflineError."""
    assert gguf.file
    return joined([_head_of(gguf, name) for name in shard_names(gguf.file)], gguf.file)


def _head_of(gguf: Gguf, name: str) -> Head:
    assert gguf.repo
    for size in _BEGINNINGS:
        data = fetch_beginning(gguf.repo, gguf.revision, name, size)
        if head := head_in(data):
            return head
        if len(data) < size:
            break
    raise BrokenFileError(f"{name} of {gguf.repo} is no GGUF file that can be read here.")


# Whether a model fits this machine, as a word and a reason. Nothing is fetched to find out.


Verdict = Literal["yes", "tight", "full", "no", "unknown"]
"""full: the machine has the memory, but other programs hold it now."""
EASY = 0.75
"""Share of the free memory that a model may take without being a tight fit."""
ROOMY = 0.5
"""Share of the machine's memory that a model may take that shall fit every day, beside other programs."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`why`: a sentence for the page. `needed`: bytes of memory, None where nothing tells."""

    verdict: Verdict
    why: str
    needed: int | None = None


def fit(
    entry: ModelEntry,
    device: str,
    backend: Backend | None = None,
    held: int = 0,
    weights: int | None = None,
) -> Fit:
    """Tell whether a model fits into memory. `held`: bytes that will be free when it is loaded, besides those that are
    free now; `weights`: bytes of a GGUF file's tensors that is not here, where its head tells them."""
    if entry.engine:
        return Fit("yes", f"Runs at {entry.engine.openai.url} and takes no memory here.", 0)
    needed = memory_needed(entry, device, backend, weights)
    if needed is None:
        return Fit("unknown", "How much memory it needs is known once it is here.")
    free, total = free_memory(device) + held, total_memory(device)
    if needed > total:
        said = f"Needs {gigabytes(needed)} of memory; this machine has {gigabytes(total)}."
        return Fit("no", f"{said} Choose a smaller model.", needed)
    said = f"Needs {gigabytes(needed)} of {gigabytes(min(free, total))} available."
    if needed > free:
        return Fit("full", f"{said} Close other programs to load it.", needed)
    if needed > EASY * free:
        return Fit("tight", f"{said} Other programs may become slow.", needed)
    return Fit("yes", said, needed)


def fits_every_day(found: Fit, device: str) -> bool:
    """Tell whether a model fits whatever other programs hold at the moment."""
    return found.verdict != "no" and found.needed is not None and found.needed <= ROOMY * total_memory(device)


def memory_needed(
    entry: ModelEntry, device: str, backend: Backend | None = None, weights: int | None = None
) -> int | None:
    """Return bytes of weights and of the whole context; None where neither files nor catalogue tell."""
    size, context = entry.size, entry.context_length or 4096
    if by_engine(entry, device, backend):
        weights = block_bytes(entry, device, weights)
        if weights and size:
            weights = int(weights * size.held)
        slot = size.slot if size else 0
        return blocks_needed(weights, slot, context, modules=through_modules(entry)) if weights else None
    return bytes_needed(size, dtype_on(entry.dtype, device), entry.quantisation, context) if size else None


def refusal(entry: ModelEntry, device: str, backend: Backend | None = None) -> str:
    """Return why a model that is here can never run, from its files; empty where nothing speaks against it."""
    if entry.engine or not is_fetched(entry, device):
        return ""
    try:
        require_runnable(entry.model_copy(update={"size": None}), device, backend)
    except ModelError as error:
        return str(error)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"Its files cannot be read ({type(error).__name__})."
    return ""


# Which step will compute a model, told before anything of it is fetched.


def expected_step(entry: ModelEntry, device: str, backend: Backend | None = None) -> Step | None:
    """Return what will compute a model: from config.json where it is a folder, else from the kind that the catalogue
    names, else from the head of a GGUF file that is here; None where none tells."""
    own = by_engine(entry, device, backend)
    if folder := entry.source_on(device).folder:
        try:
            return step(read_config(folder.path), own=own, device=device)
        except (ModelError, *NONSENSE):
            return None
    if entry.kind is not None:
        return step_of_kind(entry.kind, own=own, device=device)
    if entry.source_on(device).gguf and is_fetched(entry, device):
        with suppress(ModelError, *NONSENSE):
            gguf = get_gguf(entry, device=device)
            return gguf_step(read_head(gguf), own=own, device=device) if gguf else None
    return None
