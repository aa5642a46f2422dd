"""The user's own models.yaml: what the page writes into it, and takes out again. All else in it stays as it is."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hierchat.config import config_dir, shipped
from hierchat.models.catalogue import Catalogue, read_catalogue
from hierchat.models.errors import CatalogueError
from hierchat.models.yaml_lines import Lined


def own_file() -> Path:
    """Where it lies; it need not be there."""
    return config_dir() / "models.yaml"


def own_names() -> set[str]:
    """The models that it names. Raises CatalogueError."""
    return set(_models(Lined(own_file()))) if own_file().exists() else set()


def free_name(wanted: str, catalogue: Catalogue) -> str:
    """A name for a model, made out of that of its file or repository, that no other model has."""
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
    indent = _indent(text, models) if models else "  "
    _write(text + ("" if models else "models:\n") + textwrap.indent(entry, indent))


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
    end = next((line for line in begins if line > begin), len(lines) + 1)
    while end > begin + 1 and lines[end - 2].lstrip().startswith("#"):
        end -= 1  # a comment belongs to what follows
    del lines[begin - 1 : end - 1]
    if len(models) == 1:
        del lines[file.lines["models",] - 1]
    _write("".join(lines))


def _models(file: Lined) -> dict[str, Any]:
    models = file.data.get("models") if isinstance(file.data, dict) else None
    return models if isinstance(models, dict) else {}


def _indent(text: str, models: Mapping[str, Any]) -> str:
    """How far the names of models stand from the left."""
    first = re.search(rf"(?m)^( *)[\"']?{re.escape(next(iter(models)))}[\"']?\s*:", text)
    return first[1] if first else "  "


def _write(text: str) -> None:
    """In place of what was there, if the catalogue can be read with it."""
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
