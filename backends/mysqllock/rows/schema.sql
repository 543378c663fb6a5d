-- What is locked with strategy=row. A row is made once and stays: a lock on a row
-- that is not there would be one on the gap, which locks out other names.
CREATE TABLE IF NOT EXISTS {row} (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB;

-- The last fence of each resource. It is of its own, because whoever holds the
-- row above never commits.
CREATE TABLE IF NOT EXISTS {row_fence} (
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  fence BIGINT NOT NULL
) ENGINE=InnoDB;

-- Who holds and who waits, as long as the server has the named lock of the
-- link; without it a row means nothing. mode is X or S, fence is 0 while it
-- waits, times are UTC. revoked is when its release was forced, grace is for how
-- long it may stay then, and known is the grace that its sidecar knows of and has
-- begun to count, both in microseconds.
CREATE TABLE IF NOT EXISTS {row_hold} (
  id VARBINARY(64) NOT NULL PRIMARY KEY,
  name VARBINARY(512) NOT NULL,
  lease VARBINARY(64) NOT NULL,
  link VARBINARY(64) NOT NULL,
  mode BINARY(1) NOT NULL,
  fence BIGINT NOT NULL,
  since DATETIME(6) NOT NULL,
  revoked DATETIME(6) NULL,
  grace BIGINT NULL,
  known BIGINT NULL,
  sidecar BLOB NOT NULL,
  owner MEDIUMBLOB NOT NULL,
  KEY name (name),
  KEY lease (lease)
) ENGINE=InnoDB;
