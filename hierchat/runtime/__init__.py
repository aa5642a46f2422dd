"""`hierchat serve-vllm`: vLLM with our drafter on this machine, and the chat over it."""
