
-- strategy=row: what is locked, by sidecars and by programs that know nothing of them.
-- A row is made once and stays: a lock on a row that is not there would be one on the
-- gap, which locks out other names.
CREATE TABLE IF NOT EXISTS {row} (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB;
