"""Makes the seed pack of a model: what it replies to prompts that were written for this project.

`python -m hierchat.makers.seeds --help`
"""
