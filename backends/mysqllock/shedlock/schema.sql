-- ShedLock's table, as its documentation has it for MySQL and MariaDB, except
-- that names are compared byte by byte. One that is there already will do: then
-- two names that its collation takes for the same are one lock.
CREATE TABLE IF NOT EXISTS {shedlock} (
  name VARCHAR(64) CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M! COLLATE utf8mb4_nopad_bin */ NOT NULL,
  lock_until TIMESTAMP(3) NOT NULL,
  locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  locked_by VARCHAR(255) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- Sidecars that use ShedLock's table. Times here and below are UTC.
CREATE TABLE IF NOT EXISTS {shed_lease} (
  id VARBINARY(64) NOT NULL PRIMARY KEY,
  sidecar BLOB NOT NULL,
  until DATETIME(6) NOT NULL
) ENGINE=InnoDB;

-- The last fence of each lock.
CREATE TABLE IF NOT EXISTS {shed_fence} (
  name VARBINARY(256) NOT NULL PRIMARY KEY,
  fence BIGINT NOT NULL
) ENGINE=InnoDB;

-- Who holds through a sidecar, as long as locked_by of ShedLock's row is the
-- same, and who waits, in the order of seq. fence is 0 while it waits. grace is for
-- how long a hold may stay whose release is forced, and known is the grace that its
-- sidecar knows of and has begun to count, both in microseconds.
CREATE TABLE IF NOT EXISTS {shed_hold} (
  id VARBINARY(64) NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL AUTO_INCREMENT,
  name VARBINARY(256) NOT NULL,
  lease VARBINARY(64) NOT NULL,
  locked_by VARBINARY(255) NOT NULL,
  fence BIGINT NOT NULL,
  since DATETIME(6) NOT NULL,
  grace BIGINT NULL,
  known BIGINT NULL,
  owner MEDIUMBLOB NOT NULL,
  KEY seq (seq),
  KEY name (name, fence, seq),
  KEY lease (lease)
) ENGINE=InnoDB;

-- Requests that were given up or forced out, so that a late copy of one is not
-- carried out.
CREATE TABLE IF NOT EXISTS {shed_gone} (
  id VARBINARY(64) NOT NULL PRIMARY KEY,
  lease VARBINARY(64) NOT NULL,
  KEY lease (lease)
) ENGINE=InnoDB;
