"""What verify shares with the measurements of bench: questions, what was asked for, and the file of a run."""
