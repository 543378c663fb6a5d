-- Tables of locksidecar, version 2.
-- Names and ids are bytes. Times are microseconds since the Unix epoch, and for people
-- only: to_timestamp(at/1e6).

-- Two sidecars do not make them at the same time.
SELECT pg_advisory_xact_lock(hashtext('locksidecar schema'));

-- One row a lease, that is, a sidecar at work.
CREATE TABLE IF NOT EXISTS {lease} (
  id      BYTEA    NOT NULL PRIMARY KEY,
  beat    BIGINT   NOT NULL,             -- another number with each heartbeat
  ttl_ms  BIGINT   NOT NULL,
  ended   SMALLINT NOT NULL DEFAULT 0,   -- not 0: over for ever, and what hangs on it is cleared away: 1, it was not renewed; 2, it was closed
  server  BYTEA    NOT NULL,             -- that carried out the last heartbeat
  sidecar BYTEA    NOT NULL,
  opened  BIGINT   NOT NULL,
  renewed BIGINT   NOT NULL
) WITH (fillfactor=50, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.1);

-- One row a resource, with its exclusive hold. Who changes anything about a resource
-- locks this first; only grants, ends of exclusive holds and their guards write it.
CREATE TABLE IF NOT EXISTS {lock} (
  name     BYTEA    NOT NULL PRIMARY KEY,
  fence    BIGINT   NOT NULL,            -- of the last exclusive grant
  crowd    SMALLINT NOT NULL DEFAULT 0,  -- 1 where x_id is NULL and there are rows of hold, queue or note
  guards   BIGINT   NOT NULL DEFAULT 0,  -- counted up by guards
  x_id     BYTEA,                        -- the exclusive hold, or NULL
  x_lease  BYTEA,
  x_owner  BYTEA,
  x_since  BIGINT,
  x_shared SMALLINT NOT NULL DEFAULT 0   -- 1: it was downgraded
) WITH (fillfactor=50, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX IF NOT EXISTS {index lock_x_lease} ON {lock} (x_lease, name) WHERE x_lease IS NOT NULL;

-- Shared holds.
CREATE TABLE IF NOT EXISTS {hold} (
  name    BYTEA    NOT NULL,
  id      BYTEA    NOT NULL,
  lease   BYTEA    NOT NULL,
  owner   BYTEA,
  fence   BIGINT   NOT NULL,
  since   BIGINT   NOT NULL,
  guards  BIGINT   NOT NULL DEFAULT 0,
  PRIMARY KEY (name, id)
) WITH (autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX IF NOT EXISTS {index hold_lease} ON {hold} (lease);

-- Waiters, in the order in which they are served.
CREATE TABLE IF NOT EXISTS {queue} (
  name    BYTEA    NOT NULL,
  seq     BIGINT   NOT NULL,
  id      BYTEA    NOT NULL,
  lease   BYTEA    NOT NULL,
  mode    SMALLINT NOT NULL,             -- 1 exclusive, 2 shared
  owner   BYTEA,
  since   BIGINT   NOT NULL,
  PRIMARY KEY (name, seq),
  UNIQUE (name, id)
) WITH (autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.1);
CREATE INDEX IF NOT EXISTS {index queue_lease} ON {queue} (lease);

-- What is to be remembered of a hold or waiter: that the id was given up, so that a
-- late copy of its request is not granted; or that its release is forced.
CREATE TABLE IF NOT EXISTS {note} (
  name    BYTEA    NOT NULL,
  id      BYTEA    NOT NULL,
  lease   BYTEA    NOT NULL,
  kind    SMALLINT NOT NULL,             -- 1 given up, 2 forced
  grace   BIGINT   NOT NULL DEFAULT 0,   -- microseconds
  known   BIGINT,                        -- the grace that its sidecar knows of, and counts
  era     BIGINT   NOT NULL,             -- it is forgotten some eras later
  PRIMARY KEY (name, id)
);
CREATE INDEX IF NOT EXISTS {index note_lease} ON {note} (lease);
CREATE INDEX IF NOT EXISTS {index note_era} ON {note} (era);

-- What happened, for people.
CREATE TABLE IF NOT EXISTS {log} (
  id      BIGINT   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at      BIGINT   NOT NULL,
  event   BYTEA    NOT NULL,
  name    BYTEA    NOT NULL,
  hold    BYTEA    NOT NULL,
  lease   BYTEA    NOT NULL,
  fence   BIGINT   NOT NULL,
  note    BYTEA    NOT NULL
);

-- schema: the version of these tables. floor: no new row of lock begins below it.
-- era: counts quarters of an hour, for notes. keeper: who observes the leases, and a
-- number that changes when it does. server: who may grant.
CREATE TABLE IF NOT EXISTS {meta} (
  name    BYTEA    NOT NULL PRIMARY KEY,
  value   BIGINT   NOT NULL DEFAULT 0,
  text    BYTEA    NOT NULL DEFAULT ''
);

INSERT INTO {meta} (name, value) VALUES ('schema', 2), ('floor', 0), ('era', 0), ('keeper', 0), ('server', 0) ON CONFLICT DO NOTHING;
