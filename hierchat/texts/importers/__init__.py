"""Read chats of other programs, by one reader for each program that wrote them."""
