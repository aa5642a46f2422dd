"""`hierchat verify`: the proof that drafting changes no word."""
