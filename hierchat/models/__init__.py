"""Find models in the catalogue, fetch them into the cache, load them. The packages import nothing."""
