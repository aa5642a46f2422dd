"""Tools that make what ships with the program: fit (weights of the acceptance model), seeds (the seed pack) and
catalogues (translations)."""
