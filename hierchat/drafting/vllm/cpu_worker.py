"""vLLM's worker on CPUs: --worker-cls hierchat.drafting.vllm.cpu_worker.CPUWorker."""

from __future__ import annotations

from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_worker import CPUWorker as Worker

from hierchat.drafting.vllm.expand_batch import mend
from hierchat.drafting.vllm.worker import Introduces

mend(rejection_sampler)


class CPUWorker(Introduces, Worker):
    """As vLLM's own, where sampling with drafts is right."""
