"""The drafter as a custom proposer of vLLM, with a history for each user. Runs in vLLM's worker process.

proposer.py is what vLLM calls, cpu_worker.py and gpu_worker.py tell it whose requests it drafts for. batch.py drafts
for all replies of a forward, reply.py is one of them. books.py holds the histories, file.py is their file. channel.py
answers the chat about figures and forgets what was deleted. docs/vllm.md has the protocol.
"""
