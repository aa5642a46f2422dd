"""`hierchat models list`, `... get NAME`, `... check` and `... search WORDS`. All return the process's exit code."""

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console

from hierchat.models.cache import count, gigabytes
from hierchat.models.catalogue import ModelSource, read_catalogue
from hierchat.models.device_memory import best_device
from hierchat.models.fetch.bring import prepare, status
from hierchat.models.fetch.hub import endpoint, search
from hierchat.models.load.check import expected_step, require_runnable
from hierchat.models.load.compare import differences, on_hub
from hierchat.models.progress import GatedError, ModelError, terminal_progress
from hierchat.models.runnable import Step

_BRIEFLY: dict[Step, str] = {
    "kernels": "own engine",
    "slots": "transformers",
    "plain": "transformers, no drafts",
}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a line for each row, never broken. A terminal gets aligned columns, as many as have room, the first ones
    first, and the names of those that have none; a pipe or file gets all cells, with tabs between them. `right`:
    columns of numbers."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    room, shown = shutil.get_terminal_size().columns, len(columns)
    while shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > room:
        shown -= 1
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns[:shown], row, widths, strict=False)
        ]
        print("  ".join(cells).rstrip())
    if left_out := ", ".join(columns[shown:]):
        print(f"A wider window, or a file, also gets: {left_out}.")


def list_models() -> int:
    """Prints the catalogue, and what of it is on disk."""
    try:
        catalogue = read_catalogue()
        device = best_device()
        rows = []
        for name, entry in catalogue.models.items():
            there = status(entry, device)
            disk = gigabytes(there.size) if there.present else "partly" if there.size else "-"
            step = expected_step(entry, device)
            rows.append(
                (
                    name,
                    "*" if name == catalogue.default else "-",
                    count(entry.size.parameters) if entry.size else "?",
                    disk,
                    "a server" if entry.engine else _BRIEFLY[step] if step else "?",
                    entry.licence,
                    entry.engine.openai.url if entry.engine else _origin(entry.source_on(device)),
                    ", ".join(entry.drafts) or "-",
                )
            )
    except ModelError as error:
        return _failed(error)
    columns = ("model", "default", "size", "on disk", "computed by", "licence", "from", "drafts")
    print_table(columns, rows, right=("size", "on disk"))
    return 0


def get_model(name: str) -> int:
    """Brings a model into the cache, with a progress bar, and prints where it lies."""
    try:
        entry = read_catalogue().entry(name)
        with terminal_progress() as report:
            require_runnable(entry, progress=report)
            folder = prepare(entry, report)
    except ModelError as error:
        return _failed(error)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. The same command goes on.")
        return 130
    Console(soft_wrap=True).print(f"{name}: {folder}", markup=False, highlight=False)
    return 0


def check_models(names: list[str]) -> int:
    """Compares models, by default all that come from the hub, with what lies there, and prints what differs. 1 where
    anything does."""
    found = 0
    try:
        catalogue = read_catalogue()
        entries = [catalogue.entry(name) for name in names] or list(catalogue.models.values())
        for entry in filter(on_hub, entries):
            try:
                said = list(differences(entry))
            except GatedError as error:  # no fault of the catalogue
                Console(soft_wrap=True).print(f"{entry.name}: {error}", markup=False, highlight=False)
                continue
            found += len(said)
            for sentence in said or ["as on the hub"]:
                Console(soft_wrap=True).print(f"{entry.name}: {sentence}", markup=False, highlight=False)
    except ModelError as error:
        return _failed(error)
    return 1 if found else 0


def search_models(words: list[str]) -> int:
    """Prints models of the hub whose names hold these words, which are sent there."""
    try:
        found = search(" ".join(words))
    except ModelError as error:
        return _failed(error)
    if not found:
        print(f"The hub at {endpoint()} has no model whose name holds these words. Try fewer.")
        return 0
    rows = []
    for model in found:
        parameters = count(model.parameters) if model.parameters and not model.packed else "?"
        forms = [gigabytes(model.size) if model.size else "safetensors"] if model.safetensors else []
        forms += [f"{len(model.gguf)} GGUF"] if model.gguf else []
        remarks = ["gated"] if model.gated else []
        remarks += [f"not to chat with: {model.not_for_chat}"] if model.not_for_chat else []
        downloads = f"{model.downloads:,}" if model.downloads is not None else "?"
        rows.append(
            (
                model.repo,
                parameters,
                ", ".join(forms) or "-",
                downloads,
                model.licence or "?",
                "; ".join(remarks) or "-",
            )
        )
    columns = ("model", "parameters", "as", "downloads", "licence", "remarks")
    print_table(columns, rows, right=("parameters", "downloads"))
    Console(stderr=True, soft_wrap=True).print(
        "Models on the page adds one of them, and says before whether it runs here."
    )
    return 0


def _failed(error: ModelError) -> int:
    Console(stderr=True, soft_wrap=True).print(f"Error: {error}", markup=False, highlight=False)
    return 1


def _origin(source: ModelSource) -> str:
    return next(kind for kind in ("wheel", "hub", "folder", "gguf") if getattr(source, kind))
