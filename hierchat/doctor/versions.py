"""The program and what it stands on, without importing any of it."""

from __future__ import annotations

import platform
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from hierchat import __version__
from hierchat.doctor.finding import Finding

PACKAGES = (
    "gradio", "torch", "transformers", "bitsandbytes", "accelerate", "sqlite-utils", "psutil", "numba", "llvmlite",
    "numpy", "tokenizers", "huggingface-hub", "gguf", "pydantic",
)  # fmt: skip


def versions() -> list[Finding]:
    """One line for the program, one for what it stands on, one for each package that is missing or another than asked
    for."""
    wanted = _wanted()
    there = {name: _version(name) for name in dict.fromkeys((*PACKAGES, *wanted))}
    shown = ", ".join(f"{name} {there[name]}" for name in PACKAGES if there[name])
    found = [
        Finding(f"hierchat {__version__}, Python {platform.python_version()} ({platform.machine()})"),
        Finding(shown),
    ]
    for name, version in there.items():
        requirement = wanted.get(name)
        if version is None and (requirement or not wanted):
            found.append(Finding(f"{name}: missing", f"Install it: pip install {requirement or name}"))
        elif version and requirement and not requirement.specifier.contains(version, prereleases=True):
            found.append(
                Finding(f"{name} {version}: hierchat asks for {requirement}", f'pip install "{requirement}"')
            )
    return found


def _wanted() -> dict[str, Requirement]:
    """What the installed hierchat asks for; empty in a clone that was not installed."""
    try:
        lines = metadata.requires("hierchat") or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found[requirement.name.lower()] = requirement
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
