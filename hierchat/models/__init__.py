"""Find models in the catalogue, fetch them into the cache, load them. Import from the modules themselves: the packages
import nothing, so that reading the catalogue costs no torch."""
