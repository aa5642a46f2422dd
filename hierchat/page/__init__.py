"""A comparison on the page: the form that chooses both sides, and the result with its chart, picture and export."""
