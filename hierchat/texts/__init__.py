"""Chats in and out: files of other programs and our own, Markdown for people. Knows the store, no model and no page. A
page or a command calls `importing.Import`, `exporting.export_json` and `exporting.export_markdown`; each is iterated
over, and tells how far it is."""
