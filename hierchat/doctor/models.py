"""The models of the catalogue: which are here, and whether this machine can run them."""

from __future__ import annotations

from hierchat.doctor.finding import Finding
from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Catalogue, ModelEntry, read_catalogue
from hierchat.models.errors import BrokenFileError, ModelError
from hierchat.models.fetch.bring import status
from hierchat.models.load.check import require_memory, require_runnable


def models(device: str) -> list[Finding]:
    """One line for each; what is wrong with the catalogue in place of them."""
    try:
        catalogue = read_catalogue()
    except ModelError as error:
        return [Finding("the catalogue cannot be read", str(error))]
    return [_model(catalogue, entry, device) for entry in catalogue.models.values()]


def _model(catalogue: Catalogue, entry: ModelEntry, device: str) -> Finding:
    name = f"{entry.name} (the default)" if entry.name == catalogue.default else entry.name
    try:
        there = status(entry, device)
        disk = "not here"
        if there.size:
            disk = (
                f"{gigabytes(there.size)} here"
                if there.present
                else f"{gigabytes(there.size)} here, not ready"
            )
        # Of what is not here, no file is fetched to find out.
        if there.present:
            require_runnable(entry, device)
        else:
            require_memory(entry, device)
    except BrokenFileError as error:
        return Finding(f"{name}: broken", str(error))
    except (ModelError, OSError, ValueError) as error:
        return Finding(f"{name}: cannot run here. {str(error).split(' What would fit')[0]}")
    return Finding(f"{name}: {disk}, {'can run' if there.present else 'memory suffices'}")
