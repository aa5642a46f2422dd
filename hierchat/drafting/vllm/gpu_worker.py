"""vLLM's worker on GPUs: --worker-cls hierchat.drafting.vllm.gpu_worker.GPUWorker."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from hierchat.drafting.vllm.worker import Introduces


class GPUWorker(Introduces, Worker):
    """As vLLM's own."""
