"""`hierchat doctor`: what a report of a problem needs to say of machine, program, models and database."""
