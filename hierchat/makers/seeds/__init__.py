"""Makes texts that ship: what a model replies to prompts that were written for this project.

`python -m hierchat.makers.seeds --help`
"""
