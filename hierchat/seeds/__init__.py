"""Makes the seed pack of a model: what it replies to prompts that were written for this project.

For developers; nothing else of hierchat imports it. `python -m hierchat.seeds --help`
"""
