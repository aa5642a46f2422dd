-- Share of all cores that other programs used while a reply was written; NULL in replies of earlier versions.
ALTER TABLE turns ADD COLUMN others REAL;
