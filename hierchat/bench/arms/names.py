"""How arms are called on the command line, and which one is the baseline of which."""

from __future__ import annotations

VANILLA = "vanilla"
BASELINES = {
    "transformers": "transformers",
    "transformers-pld": "transformers",
    "transformers-assisted": "transformers",
    "transformers-bf16": "transformers-bf16",
    "llama.cpp": "llama.cpp",
    "llama.cpp-lookup": "llama.cpp",
    "llama.cpp-lookup-10": "llama.cpp",
    "llama.cpp-draft": "llama.cpp",
    "flashspec": "transformers",
    "dejavuu": "transformers",
}
"""Peers, and the arm that decodes plainly with the same stack."""
PEERS = tuple(BASELINES)
TIMED = ("llama.cpp",)
"""Peers of which a single forward can be timed."""
DRAFT = "draft:"
"""Before the name of a draft model: the arm in which nothing else drafts."""
PLAN = "plan:"
"""Before a plan: the arm that follows it at every step."""


def baseline_of(arm: str) -> str:
    """The arm that decodes plainly with the same stack."""
    return BASELINES.get(arm, VANILLA)
