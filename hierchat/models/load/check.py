"""Whether a model can run here, found out before its weights are fetched, unpacked or read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hierchat.models.catalogue import Backend, ModelEntry, read_catalogue
from hierchat.models.errors import NONSENSE, BrokenFileError, DoesNotFitError, ModelError, UnsupportedError
from hierchat.models.fetch.bring import get_gguf, has_blocks, is_fetched
from hierchat.models.fetch.convert import blocks_folder, is_converted
from hierchat.models.fetch.folder import causal_config, read_config
from hierchat.models.fetch.hub import fetch_hub
from hierchat.models.fetch.weights import weight_bytes
from hierchat.models.formats.gguf_config import gguf_config
from hierchat.models.formats.gguf_families.registry import FAMILIES, KINDS
from hierchat.models.formats.gguf_head import Head, read_head
from hierchat.models.memory import best_device, require_blocks_fit, require_fit
from hierchat.models.progress import Report, silent
from hierchat.models.runnable import gguf_refused, gguf_unsupported, refused, step_of_kind, unsupported

LEAST_BYTES, FLOAT_BYTES = 0.53, 4
"""Per weight on the CPU engine: in blocks of 4 bits, unless its files are smaller, and where all become floats."""


def by_engine(entry: ModelEntry, device: str, backend: Backend | None) -> bool:
    """Whether our own CPU engine shall compute a model, if it can, or at least its matrices; otherwise transformers
    does."""
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
    """Whether on a processor it is transformers' module over our kernels, as far as that is known before it is here."""
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
    """The same of a GGUF file of which the head alone is here. Raises UnsupportedError."""
    engine = by_engine(entry, device, backend)
    _require_one(entry.name, engine, backend, head.architecture, *_refusals(entry.name, head))


def _refusals(name: str, head: Head) -> tuple[str | None, str | None]:
    """Why our own kernels cannot compute a GGUF file, and why transformers cannot. Raises BrokenFileError."""
    with _sense(name):
        gguf_config(head)
        through = gguf_refused(head)
        return through if head.architecture in FAMILIES else gguf_unsupported(head), through


@contextmanager
def _sense(name: str) -> Iterator[None]:
    """What is computed with the values of a model's files. Raises BrokenFileError where these make no sense."""
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
    """The entry as if the catalogue asked for this backend."""
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
    """Whether the blocks of a model from a wheel lie ready: then it can run, and the file itself may be gone."""
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
    """What config.json says. Where transformers computes, it is transformers that reads it."""
    if engine:
        try:
            config = read_config(folder)
            if not unsupported(config):
                return config
        except (OSError, ModelError, *NONSENSE):
            pass  # transformers says what is wrong with it
    return causal_config(folder, entry.name).to_dict()
