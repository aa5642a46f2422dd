"""Draw a model's Markdown as HTML that is safe to show: its own HTML is text, an image is a link to it."""

from hierchat.page.markdown.drawing import GrowingMarkdown, in_pieces, render, render_marked

__all__ = ["GrowingMarkdown", "in_pieces", "render", "render_marked"]
