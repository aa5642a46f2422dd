"""A model's Markdown as HTML that is safe to show.

parser.py reads the text, mathematics.py and code.py draw formulas and code, sanitise.py lets through only what is
listed there. marking.py marks in the result where its words came from. HTML in a reply is text. Nothing is fetched: an
image is a link to it.
"""

from hierchat.page.markdown.drawing import GrowingMarkdown, in_pieces, render, render_marked

__all__ = ["GrowingMarkdown", "in_pieces", "render", "render_marked"]
