"""The page. Knows the chat service and what it yields; knows neither torch nor SQL."""
