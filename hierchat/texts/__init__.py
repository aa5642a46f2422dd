"""Read the user's files and documents, and import and export chats, without knowing models or pages."""
