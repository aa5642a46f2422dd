"""Serve OpenAI's and Anthropic's protocols to other programs, over the same ChatService as the page."""
