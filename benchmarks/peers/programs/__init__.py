"""Answer in a peer's own process and environment: without hierchat, and with relative imports only.

main.py reads requests and answers them; each other program has a file, called as the program is.
"""
