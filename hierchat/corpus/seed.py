"""The seed pack that ships for a model: unpacked and sorted once, into the cache."""

from __future__ import annotations

import logging
import lzma
from pathlib import Path

from pydantic import ValidationError

from hierchat.config import cache_dir, shipped
from hierchat.corpus.errors import CorpusError
from hierchat.corpus.format import FORM, Damaged, Statistics, read, write
from hierchat.drafting.pack import Header, PackError, read_pack
from hierchat.models.cache import known_sha256, locked
from hierchat.models.catalogue import ModelEntry
from hierchat.models.progress import silent

log = logging.getLogger(__name__)

SEED_NAME = "seed"
"""What a pack is called among the corpora."""


def seeds_dir() -> Path:
    """Where the packs lie, each called after its model: MODEL.xz."""
    return shipped("assets") / "seeds"


def seed_index(entry: ModelEntry, tokenizer: str) -> Statistics | None:
    """The texts of the pack for this model, or for one with the same tokenizer (its tokens_sha256); None where there
    is none. A pack that cannot be used only leaves a line in the log."""
    packs = sorted(seeds_dir().glob("*.xz"), key=lambda pack: (pack.stem != entry.name, pack.name))
    for pack in packs:
        try:
            header = _header(pack)
            if header.tokenizer == tokenizer and header.texts:
                return _index(pack, header)
        except (OSError, PackError, CorpusError) as error:
            log.warning("The seed pack %s is not used: %s", pack, error)
    return None


def _header(pack: Path) -> Header:
    """The first line alone: packs for other models are not unpacked."""
    try:
        with lzma.open(pack) as lines:
            return Header.model_validate_json(lines.readline(1 << 16))
    except (lzma.LZMAError, EOFError, ValidationError) as error:
        raise PackError("it is damaged, or of another version of hierchat") from error


def _index(pack: Path, header: Header) -> Statistics:
    target = cache_dir() / "seeds" / f"{known_sha256(pack)}-{FORM}"
    with locked(target, silent, "sorting"):
        try:
            return read(target)
        except Damaged:
            tokens = read_pack(pack).tokens
            return write(target, SEED_NAME, tokens, header.texts, header.tokenizer, header.model, [pack.name])
