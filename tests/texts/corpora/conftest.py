"""A tiny model of one's own in the catalogue, and folders of each test's own."""

from pathlib import Path
from typing import Any

import pytest

import hierchat.drafting.suffix_index  # noqa: F401  # before the cache moves, so that it is compiled once
from hierchat.models.catalogue import read_catalogue
from hierchat.models.load.tokenizer_files import load_tokenizer
from tests.testing.tiny_files import tiny_tokenizer


@pytest.fixture(autouse=True)
def catalogue(places: Path) -> None:
    """The default model `tiny`, `twin` with its tokens, and `other`."""
    lines = ["models:"]
    for name in ("tiny", "twin", "other"):
        tiny_tokenizer(("ab",) if name == "other" else ()).save_pretrained(places / "models" / name)
        default = ", default: true" if name == "tiny" else ""
        lines.append(f"  {name}: {{source: {{folder: {{path: {places / 'models' / name}}}}}{default}}}")
    (places / "CONFIG").mkdir()
    (places / "CONFIG" / "models.yaml").write_text("\n".join(lines))


@pytest.fixture
def tokenizer() -> Any:
    """That of `tiny`, as it is loaded."""
    return load_tokenizer(read_catalogue().entry("tiny"))
