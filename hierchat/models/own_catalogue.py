"""Write models into the user's own models.yaml, and take them out again. All else in it stays as it is."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hierchat.config import config_dir, shipped
from hierchat.models.catalogue import Catalogue, Lined, read_catalogue
from hierchat.models.progress import CatalogueError


def own_file() -> Path:
    """Return where it lies; it need not be there."""
    return config_dir() / "models.yaml"


def own_names() -> set[str]:
    """Name the models that it adds to those that ship. Raises CatalogueError."""
    if not own_file().exists():
        return set()
    return set(_models(Lined(own_file()))) - set(_models(Lined(shipped("models.yaml"))))


def free_name(wanted: str, catalogue: Catalogue) -> str:
    """Make a name that no other model has, out of that of a file or repository."""
    stem = re.sub(r"[^\w.-]+", "-", re.sub(r"\.gguf$", "", wanted, flags=re.IGNORECASE).lower()).strip("-.")
    base = stem or "model"
    taken = {name.lower() for name in catalogue.models}
    return next(
        name for n in range(1, len(taken) + 2) if (name := f"{base}-{n}" if n > 1 else base) not in taken
    )


def add_model(name: str, fields: Mapping[str, Any]) -> None:
    """Write a model at the end. Raises CatalogueError where the file cannot hold it or be written."""
    text = own_file().read_text(encoding="utf-8") if own_file().exists() else ""
    models = _models(Lined(own_file())) if text.strip() else {}
    entry = yaml.safe_dump({name: dict(fields)}, sort_keys=False, allow_unicode=True)
    if not models:
        text = re.sub(r"(?m)^models:.*\n?", "", text)
    if text and not text.endswith("\n"):
        text += "\n"
    # As far from the left as other models
    first = models and re.search(rf"(?m)^( *)[\"']?{re.escape(next(iter(models)))}[\"']?\s*:", text)
    _write(text + ("" if models else "models:\n") + textwrap.indent(entry, first[1] if first else "  "))


def remove_model(name: str) -> None:
    """Take a model out. Raises CatalogueError where it stands on one line with others, or cannot be written."""
    file = Lined(own_file())
    models = _models(file)
    lines = own_file().read_text(encoding="utf-8").splitlines(keepends=True)
    begins = sorted(file.lines["models", other] for other in models)
    begin = file.lines["models", name]
    if len(set(begins)) < len(begins) or begin == file.lines["models",]:
        raise CatalogueError(
            f"{own_file()}:{begin}: {name} stands on one line with others. Remove it there by hand."
        )
    del lines[begin - 1 : _end(lines, begin, begins) - 1]
    if len(models) == 1:
        del lines[file.lines["models",] - 1]
    _write("".join(lines))


def set_drafts(name: str, drafts: Sequence[str]) -> None:
    """Let these models draft for one of any file. Raises CatalogueError where that cannot be written."""
    file = Lined(own_file()) if own_file().exists() else None
    models = _models(file) if file else {}
    if not file or name not in models:
        return add_model(name, {"drafts": list(drafts)})
    lines = own_file().read_text(encoding="utf-8").splitlines(keepends=True)
    begin = file.lines["models", name]
    fields = sorted(file.lines["models", name, field] for field in models[name])
    others = sorted(file.lines["models", other] for other in models)
    if not fields or begin in fields:
        raise CatalogueError(
            f"{own_file()}:{begin}: {name} stands on one line with its fields. Change its drafts there by hand."
        )
    indent = re.match(r" *", lines[fields[0] - 1])
    said = f"{indent[0] if indent else ''}drafts: {yaml.safe_dump(list(drafts), default_flow_style=True)}"
    at = end = _end(lines, begin, others)
    if "drafts" in models[name]:
        at = file.lines["models", name, "drafts"]
        end = _end(lines, at, sorted([*fields, *others]))
    while not lines[end - 2].strip():  # what stood there may go, the room below it stays
        at, end = (end - 1 if at == end else at), end - 1
    if at > 1 and not lines[at - 2].endswith("\n"):
        lines[at - 2] += "\n"
    lines[at - 1 : end - 1] = [said]
    _write("".join(lines))


def _end(lines: Sequence[str], begin: int, begins: Sequence[int]) -> int:
    """Return the line behind what begins at `begin`. A comment belongs to what follows."""
    end = next((line for line in begins if line > begin), len(lines) + 1)
    while end > begin + 1 and lines[end - 2].lstrip().startswith("#"):
        end -= 1
    return end


def _models(file: Lined) -> dict[str, Any]:
    models = file.data.get("models") if isinstance(file.data, dict) else None
    return models if isinstance(models, dict) else {}


def _write(text: str) -> None:
    """Replace the file if the catalogue can be read with it."""
    file = own_file()
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        read_catalogue([shipped("models.yaml"), part])
        os.replace(part, file)
    except OSError as error:
        raise CatalogueError(f"{file} cannot be written ({error.strerror}). Make it writable.") from error
    except CatalogueError as error:
        raise CatalogueError(
            f"{file} was left as it is. {str(error).replace(str(part), file.name)}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
