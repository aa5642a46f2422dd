"""Measure the drafter inside vLLM (docs/vllm.md) beside vLLM's own ways to draft."""
