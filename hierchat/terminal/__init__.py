"""The third door over chat: `hierchat chat`, in the terminal and in scripts."""
