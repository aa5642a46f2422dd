"""Run checks that anybody can run: that drafts change no word (verify), that the promises hold (prove), and what this
machine has (doctor)."""
