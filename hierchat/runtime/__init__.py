"""Make models ready to answer: load them, find what drafts for them, build prompts, manage and download them."""
