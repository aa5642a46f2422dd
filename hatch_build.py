"""Put a bill of materials (CycloneDX, PEP 770) of what requirements.lock names into the wheel."""

import json
import re
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PINNED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)


def bill(lock: str, name: str, version: str) -> bytes:
    """Return the bill of materials of a program with these pinned packages; the same text for the same lock."""
    components = [_component("library", *pin) for pin in sorted(_PINNED.findall(lock))]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component("application", name, version)},
        "components": components,
        "dependencies": [
            {"ref": f"pkg:pypi/{name}@{version}", "dependsOn": [one["purl"] for one in components]}
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _component(kind: str, name: str, version: str) -> dict[str, str]:
    purl = f"pkg:pypi/{name.lower()}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


class BillHook(BuildHookInterface):  # type: ignore[misc]
    """Runs before a wheel is written."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill where the wheel takes it from."""
        metadata = self.metadata
        lock = Path(self.root, "requirements.lock").read_text(encoding="utf-8")
        self._file = Path(mkdtemp(), f"{metadata.name}.cdx.json")
        self._file.write_bytes(bill(lock, metadata.name, metadata.version))
        build_data.setdefault("sbom_files", []).append(str(self._file))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what `initialize` wrote."""
        self._file.unlink()
        self._file.parent.rmdir()
