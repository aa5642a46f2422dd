"""What a model writes for itself while nobody needs it: texts of one user that draft for that user's replies."""
