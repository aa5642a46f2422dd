-- Results of comparisons are shown, and no longer kept.
DROP TABLE comparisons;
