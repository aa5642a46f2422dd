"""Read the user's files and documents, and import and export chats: files of other programs and our own,
Markdown for people. Knows the store, no model and no page. Each of `importing.Import`,
`exporting.export_json` and `exporting.export_markdown` is iterated over, and tells how far it is."""
