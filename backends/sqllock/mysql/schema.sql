-- Tables of locksidecar, version 2.
-- Names and ids are bytes. Times are microseconds since the Unix epoch, and for people
-- only: FROM_UNIXTIME(at/1000000).

-- One row a lease, that is, a sidecar at work.
CREATE TABLE IF NOT EXISTS {lease} (
  id      VARBINARY(64)  NOT NULL PRIMARY KEY,
  beat    BIGINT         NOT NULL,             -- another number with each heartbeat
  ttl_ms  BIGINT         NOT NULL,
  ended   TINYINT        NOT NULL DEFAULT 0,   -- not 0: over for ever, and what hangs on it is cleared away: 1, it was not renewed; 2, it was closed
  server  VARBINARY(512) NOT NULL,             -- the mark of meta at the last heartbeat
  sidecar VARBINARY(255) NOT NULL,
  opened  BIGINT         NOT NULL,
  renewed BIGINT         NOT NULL
) ENGINE=InnoDB;

-- One row a resource, with its exclusive hold. Who changes anything about a resource
-- locks this first; only grants, ends of exclusive holds and their guards write it.
CREATE TABLE IF NOT EXISTS {lock} (
  name     VARBINARY(512) NOT NULL PRIMARY KEY,
  fence    BIGINT         NOT NULL,            -- of the last exclusive grant
  crowd    TINYINT        NOT NULL DEFAULT 0,  -- 1: there are rows of note, or x_id is NULL and there are rows of hold or queue
  guards   BIGINT         NOT NULL DEFAULT 0,  -- counted up by guards
  x_id     VARBINARY(64),                      -- the exclusive hold, or NULL
  x_lease  VARBINARY(64),
  x_owner  MEDIUMBLOB,
  x_since  BIGINT,
  x_shared TINYINT        NOT NULL DEFAULT 0,  -- 1: it was downgraded
  KEY x_lease (x_lease)
) ENGINE=InnoDB;

-- Shared holds.
CREATE TABLE IF NOT EXISTS {hold} (
  name    VARBINARY(512) NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  owner   MEDIUMBLOB,
  fence   BIGINT         NOT NULL,
  since   BIGINT         NOT NULL,
  guards  BIGINT         NOT NULL DEFAULT 0,
  PRIMARY KEY (name, id),
  KEY lease (lease)
) ENGINE=InnoDB;

-- Waiters, in the order in which they are served.
CREATE TABLE IF NOT EXISTS {queue} (
  name    VARBINARY(512) NOT NULL,
  seq     BIGINT         NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  mode    TINYINT        NOT NULL,             -- 1 exclusive, 2 shared
  owner   MEDIUMBLOB,
  since   BIGINT         NOT NULL,
  PRIMARY KEY (name, seq),
  UNIQUE KEY id (name, id),
  KEY lease (lease)
) ENGINE=InnoDB;

-- What is to be remembered of a hold or waiter: that the id was given up, so that a
-- late copy of its request is not granted; or that its release is forced.
CREATE TABLE IF NOT EXISTS {note} (
  name    VARBINARY(512) NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  kind    TINYINT        NOT NULL,             -- 1 given up, 2 forced
  grace   BIGINT         NOT NULL DEFAULT 0,   -- microseconds
  known   BIGINT,                              -- the grace that its sidecar knows of, and counts
  era     BIGINT         NOT NULL,             -- it is forgotten some eras later
  PRIMARY KEY (name, id),
  KEY lease (lease),
  KEY era (era)
) ENGINE=InnoDB;

-- What happened, for people.
CREATE TABLE IF NOT EXISTS {log} (
  id      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at      BIGINT         NOT NULL,
  event   VARBINARY(16)  NOT NULL,
  name    VARBINARY(512) NOT NULL,
  hold    VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  fence   BIGINT         NOT NULL,
  note    VARBINARY(255) NOT NULL
) ENGINE=InnoDB;

-- schema: the version of these tables. floor: no new row of lock begins below it.
-- era: counts quarters of an hour, for notes. keeper: who observes the leases, and a
-- number that changes when it does. server: who may grant.
CREATE TABLE IF NOT EXISTS {meta} (
  name    VARBINARY(32)  NOT NULL PRIMARY KEY,
  value   BIGINT         NOT NULL DEFAULT 0,
  text    VARBINARY(512) NOT NULL DEFAULT ''
) ENGINE=InnoDB;

INSERT IGNORE INTO {meta} (name, value) VALUES ('schema', 2), ('floor', 0), ('era', 0), ('keeper', 0), ('server', 0);
