"""Run chats: replies, their records, titles, comparisons and statistics, behind the one door ChatService."""
