"""Tools that make what ships with the program: fit (weights of the acceptance model) and seeds (texts that draft)."""
