"""Earlier texts of a user and a model to draft from, kept in step with the store."""
