"""vLLM's worker on GPUs: --worker-cls hierchat.integrations.vllm.gpu_worker.GPUWorker."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from hierchat.integrations.vllm.introduced import Introduces


class GPUWorker(Introduces, Worker):
    """As vLLM's own."""
