"""Draft as a custom proposer of vLLM, with a history for each user, in vLLM's worker process."""
