"""What is measured: one file for each command of `bench`."""
