"""`hierchat doctor --gpu`: every way to compute on this GPU, tried and measured, as a block to paste into a report."""
