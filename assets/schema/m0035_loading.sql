-- What a reply waited for until the model was there: milliseconds by what was done meanwhile, as JSON. Of earlier replies
-- only their sum is known.
ALTER TABLE turns ADD COLUMN loading TEXT;
UPDATE turns SET loading = json_object('', loading_ms) WHERE loading_ms IS NOT NULL;
ALTER TABLE turns DROP COLUMN loading_ms;
