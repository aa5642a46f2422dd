-- The tool that a reply called, with what came of it, as JSON; and the servers of mcp.json that a user switched on.
ALTER TABLE messages ADD COLUMN call TEXT;
ALTER TABLE users ADD COLUMN tool_servers TEXT NOT NULL DEFAULT '[]';
