"""Text that drafts: corpora that the user adds, and texts that ship. No torch, no gradio, no SQLite."""
