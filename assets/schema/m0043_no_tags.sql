-- Chats have no tags any more; projects and the search find them.
DROP TABLE tags;
