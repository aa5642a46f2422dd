"""Run checks that anybody can run: that drafts change no word (verify), and what this machine has (doctor)."""
