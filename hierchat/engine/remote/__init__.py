"""Models that a server elsewhere computes: any that speaks OpenAI's protocol, and vLLM with our drafter."""
