"""Draw the Gradio page over ChatService: layout, views, handlers and panels."""

import sys

sys.modules["mcp"] = None  # type: ignore[assignment]  # Gradio 6.31 would load it, 25 MB, to offer what is off here
import gradio  # noqa: E402, F401

del sys.modules["mcp"]
