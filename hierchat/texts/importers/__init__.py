"""Readers of chats, one for each program that wrote them."""
