"""Make what ships with the program: fit (weights of the acceptance model), seeds (texts that draft) and catalogues
(translations). hub_check compares models.yaml with the hub."""
