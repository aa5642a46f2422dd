"""Published ways of drafting, behind our own verification: what hierchat is compared with. One file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hierchat.bench.published.arctic import Arctic
from hierchat.bench.published.common import Published, SortedTexts
from hierchat.bench.published.hierarchy import HierarchyDrafting
from hierchat.bench.published.llama_cache import LlamaCache
from hierchat.bench.published.prompt_lookup import PromptLookup
from hierchat.bench.published.suffix import Suffix
from hierchat.bench.published.token_recycling import TokenRecycling

PUBLISHED: dict[str, Callable[[int | None, Sequence[SortedTexts]], Published]] = {
    "hd-paper": HierarchyDrafting,
    "pld": PromptLookup,
    "token-recycling": TokenRecycling,
    "suffix": Suffix,
    "llama-cache": LlamaCache,
    "arctic-suffix": Arctic,
}
"""By the name of the arm; made of the positions per forward, None for the method's own, and of the corpora."""
