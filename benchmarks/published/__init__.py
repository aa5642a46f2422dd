"""Collect published ways of drafting, behind our own verification, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.published.arctic import Arctic
from benchmarks.published.common import Published, SortedTexts
from benchmarks.published.hierarchy import HierarchyDrafting
from benchmarks.published.llama_cache import LlamaCache
from benchmarks.published.prompt_lookup import PromptLookup
from benchmarks.published.suffix import Suffix
from benchmarks.published.token_recycling import TokenRecycling

PUBLISHED: dict[str, Callable[[int | None, Sequence[SortedTexts]], Published]] = {
    "hd-paper": HierarchyDrafting,
    "pld": PromptLookup,
    "token-recycling": TokenRecycling,
    "suffix": Suffix,
    "llama-cache": LlamaCache,
    "arctic-suffix": Arctic,
}
"""By the name of the arm; made of the positions per forward, None for the method's own, and of the corpora."""
