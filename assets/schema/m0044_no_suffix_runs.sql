-- The orders of suffixes are sorted again at each start, a second for three million tokens.
DROP TABLE suffix_runs;
