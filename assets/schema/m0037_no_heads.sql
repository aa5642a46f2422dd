-- Draft heads are no longer trained or read.
DELETE FROM learned WHERE kind = 'head';
