"""From the raw figures of runs to tables, plots and a page."""
