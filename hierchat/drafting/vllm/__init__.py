"""The drafter as a custom proposer of vLLM, with a history for each user. Runs in vLLM's worker process.

custom_proposer.py is what vLLM calls; the classes of worker.py hand it the requests that it drafts for. batch.py drafts
for all replies of a forward. user_state.py holds each user's history, user_state_file.py is its file. channel.py tells
the chat figures and deletes what it names. docs/vllm.md has the protocol.
"""
