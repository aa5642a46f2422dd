"""Draft as a custom proposer of vLLM, with a history for each user. Runs in vLLM's worker process.

custom_proposer.py is what vLLM calls; the classes of worker.py hand it the requests that it drafts for."""
