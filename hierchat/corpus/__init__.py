"""Text that drafts: corpora that the user adds, and the seed pack that ships. No torch, no gradio, no SQLite."""
