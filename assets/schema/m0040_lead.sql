-- The last tokens of the prompt before each reply: when the same is asked again, they find the reply.
ALTER TABLE token_log ADD COLUMN lead BLOB NOT NULL DEFAULT x'';
