"""A comparison on the page: the form that chooses both sides, and the result with its chart, picture and export."""

import sys

sys.modules["mcp"] = None  # type: ignore[assignment]  # Gradio 6.31 would load it, 25 MB, to offer what is off here
import gradio  # noqa: E402, F401

del sys.modules["mcp"]
