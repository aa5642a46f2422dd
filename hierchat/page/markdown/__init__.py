"""Draw a model's Markdown as HTML that is safe to show: its own HTML is text, an image is a link to it."""
