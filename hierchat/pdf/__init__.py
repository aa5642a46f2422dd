"""The text of PDF files, read apart from this program."""
