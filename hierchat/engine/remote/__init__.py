"""Generate on a server elsewhere: any that speaks OpenAI's protocol, and vLLM with our drafter."""
