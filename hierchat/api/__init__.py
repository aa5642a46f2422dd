"""The endpoint: OpenAI's protocol for other programs, a second door over chat beside the page."""
