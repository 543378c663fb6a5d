
-- strategy=shedlock: ShedLock's table, as its documentation has it for MySQL and
-- MariaDB, except that names are compared byte by byte. One that is there already will
-- do: then two names that its collation takes for the same are one lock.
CREATE TABLE IF NOT EXISTS {shedlock} (
  name VARCHAR(64) CHARACTER SET utf8mb4 /*!80017 COLLATE utf8mb4_0900_bin */ /*M! COLLATE utf8mb4_nopad_bin */ NOT NULL,
  lock_until TIMESTAMP(3) NOT NULL,
  locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  locked_by VARCHAR(255) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;
