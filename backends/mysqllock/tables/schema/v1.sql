-- Tables of the strategy "tables" of locksidecar, version 1.
-- Names and ids are bytes; times are in UTC and for people only.

-- One row a lease, that is, a sidecar at work. A hold or waiter counts only as
-- long as the row of its lease is there.
CREATE TABLE IF NOT EXISTS {lease} (
  id      VARBINARY(64)  NOT NULL PRIMARY KEY,
  beat    BIGINT         NOT NULL,             -- another number with each heartbeat
  ttl_ms  INT            NOT NULL,
  sidecar VARBINARY(255) NOT NULL,
  opened  DATETIME(6)    NOT NULL,
  renewed DATETIME(6)    NOT NULL
) ENGINE=InnoDB;

-- One row a resource. Who changes anything about a resource locks this first.
CREATE TABLE IF NOT EXISTS {lock} (
  name    VARBINARY(512) NOT NULL PRIMARY KEY,
  fence   BIGINT         NOT NULL DEFAULT 0,   -- of the last grant; 0: the row is new
  readers INT            NOT NULL DEFAULT 0,   -- rows of the table hold
  waiters INT            NOT NULL DEFAULT 0,   -- rows of the table queue
  gone    INT            NOT NULL DEFAULT 0,   -- rows of the table gone
  tail    BIGINT         NOT NULL DEFAULT 0,   -- last seq of the queue
  x_id    VARBINARY(64),                       -- the exclusive hold, or NULL
  x_lease VARBINARY(64),
  x_owner MEDIUMBLOB,
  x_since DATETIME(6),
  x_quick TINYINT        NOT NULL DEFAULT 0,   -- 1: the log does not know of its grant yet
  x_grace BIGINT,                              -- its release is forced, with a grace of so many microseconds
  x_mark  BIGINT,                              -- the grace that its sidecar knows of, and has begun to count
  trail   VARBINARY(4000) NOT NULL DEFAULT ''  -- what is to be moved to the log: the log has not got yet
) ENGINE=InnoDB;

-- Shared holds.
CREATE TABLE IF NOT EXISTS {hold} (
  name    VARBINARY(512) NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  owner   MEDIUMBLOB,
  fence   BIGINT         NOT NULL,
  since   DATETIME(6)    NOT NULL,
  grace   BIGINT,                              -- as x_grace and x_mark
  mark    BIGINT,
  PRIMARY KEY (name, id)
) ENGINE=InnoDB;

-- Waiters, in the order in which they are served.
CREATE TABLE IF NOT EXISTS {queue} (
  name    VARBINARY(512) NOT NULL,
  seq     BIGINT         NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  mode    BINARY(1)      NOT NULL,             -- X or S
  owner   MEDIUMBLOB,
  since   DATETIME(6)    NOT NULL,
  PRIMARY KEY (name, seq)
) ENGINE=InnoDB;

-- Requests that were given up while a copy of them may still be on its way.
CREATE TABLE IF NOT EXISTS {gone} (
  name    VARBINARY(512) NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  at      DATETIME(6)    NOT NULL,
  PRIMARY KEY (name, id)
) ENGINE=InnoDB;

-- What a lease has not read yet: g granted, x out of the queue, r revoked.
CREATE TABLE IF NOT EXISTS {news} (
  lease   VARBINARY(64)  NOT NULL,
  id      VARBINARY(64)  NOT NULL,
  kind    BINARY(1)      NOT NULL,
  name    VARBINARY(512) NOT NULL,
  fence   BIGINT         NOT NULL,
  grace   BIGINT         NOT NULL,             -- microseconds
  at      DATETIME(6)    NOT NULL,
  PRIMARY KEY (lease, id, kind)
) ENGINE=InnoDB;

-- Everything that happened, written by the transaction that did it. (Holds that
-- nobody waited for are in the column trail of lock first, for a second or so.)
-- The first row is always there: statements that have nothing to log collide with it.
CREATE TABLE IF NOT EXISTS {log} (
  id      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at      DATETIME(6)    NOT NULL,
  event   VARBINARY(16)  NOT NULL,
  name    VARBINARY(512) NOT NULL,
  hold    VARBINARY(64)  NOT NULL,
  lease   VARBINARY(64)  NOT NULL,
  fence   BIGINT         NOT NULL,
  note    VARBINARY(255) NOT NULL DEFAULT ''
) ENGINE=InnoDB;

-- schema: the version of these tables. floor: no new row of lock begins below it.
CREATE TABLE IF NOT EXISTS {meta} (
  name    VARBINARY(32)  NOT NULL PRIMARY KEY,
  value   BIGINT         NOT NULL
) ENGINE=InnoDB;

INSERT IGNORE INTO {log} (id, at, event, name, hold, lease, fence) VALUES (1, NOW(6), 'schema', '', '', '', 0);

INSERT IGNORE INTO {meta} (name, value) VALUES ('schema', 1), ('floor', 0);
