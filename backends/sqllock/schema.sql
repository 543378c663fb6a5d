-- Tables of locksidecar, version {version}.
-- Names and ids are bytes. Times are microseconds since the Unix epoch, and for people, where nothing else is said.
{before}
-- One row a lease, that is, a sidecar at work.
CREATE TABLE IF NOT EXISTS {lease} (
  id {id} NOT NULL PRIMARY KEY,
  beat BIGINT NOT NULL, -- another number with each heartbeat
  ttl_ms BIGINT NOT NULL,
  ended {small} NOT NULL DEFAULT 0, -- not 0: over for ever, and what hangs on it is cleared away: 1, it was not renewed; 2, it was closed
  server {name} NOT NULL, -- the mark of meta at the last heartbeat
  sidecar {label} NOT NULL,
  opened BIGINT NOT NULL,
  renewed BIGINT NOT NULL
) {rewritten};

-- One row a resource, with its exclusive hold. Who changes anything about a resource
-- locks this first; only grants, ends of exclusive holds and their guards write it.
CREATE TABLE IF NOT EXISTS {lock} (
  name {name} NOT NULL,
  fence BIGINT NOT NULL, -- of the last exclusive grant
  crowd {small} NOT NULL DEFAULT 0, -- 1: x_id is NULL, and there are rows of hold, queue or note
  guards BIGINT NOT NULL DEFAULT 0, -- counted up by guards
  x_id {id}, -- the exclusive hold, or NULL
  x_lease {id},
  x_owner {owner},
  x_since BIGINT,
  x_shared {small} NOT NULL DEFAULT 0, -- 1: it was downgraded; where x_id is NULL: the mode of the rows of hold, if they are permits
  PRIMARY KEY (name){byfence},
  KEY x_lease (x_lease, name)
) {rewritten};

-- Shared holds, or permits, whose fence is the whole and not the number.
CREATE TABLE IF NOT EXISTS {hold} (
  name {name} NOT NULL,
  id {id} NOT NULL,
  lease {id} NOT NULL,
  owner {owner},
  fence BIGINT NOT NULL,
  since BIGINT NOT NULL, -- guards find it by that
  guards BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (name, id){bysince},
  KEY lease (lease)
) {passing};

-- Waiters, in the order in which they are served.
CREATE TABLE IF NOT EXISTS {queue} (
  name {name} NOT NULL,
  seq BIGINT NOT NULL,
  id {id} NOT NULL,
  lease {id} NOT NULL,
  mode {small} NOT NULL, -- 1 exclusive, 2 shared, 2+n one of n permits
  owner {owner},
  since BIGINT NOT NULL,
  PRIMARY KEY (name, seq),
  UNIQUE (name, id),
  KEY lease (lease)
) {passing};

-- What is to be remembered of a hold or waiter: that the id was given up, so that a
-- late copy of its request is not granted; or that its release is forced.
CREATE TABLE IF NOT EXISTS {note} (
  name {name} NOT NULL,
  id {id} NOT NULL,
  lease {id} NOT NULL,
  kind {small} NOT NULL, -- 1 given up, 2 forced
  grace BIGINT NOT NULL DEFAULT 0, -- microseconds
  known BIGINT, -- the grace that its sidecar knows of, and counts; 0: that has given it up itself
  era BIGINT NOT NULL, -- it is forgotten some eras later
  PRIMARY KEY (name, id),
  KEY lease (lease),
  KEY era (era)
) {lasting};

-- Holds that keep others out at least so long: until then each is one, also where it has no row
-- above any more, or that one's lease is over; and waiters that want to be one. Detached holds are such.
CREATE TABLE IF NOT EXISTS {least} (
  name {name} NOT NULL,
  id {id} NOT NULL,
  mode {small} NOT NULL, -- as in queue
  asked BIGINT NOT NULL, -- microseconds
  fence BIGINT NOT NULL, -- as in lock and in hold
  sidecar {label} NOT NULL,
  owner {owner},
  since BIGINT NOT NULL,
  ends BIGINT NOT NULL, -- by the server's clock; 0: it waits
  PRIMARY KEY (name, id),
  KEY name (name, ends),
  KEY ends (ends)
) {passing};

-- Detached holds, which have a row of least: by what each is found, attached or not.
CREATE TABLE IF NOT EXISTS {handle} (
  name {name} NOT NULL,
  id {id} NOT NULL,
  hash {id} NOT NULL, -- SHA-256 of the handle's secret, in hexadecimal digits
  PRIMARY KEY (name, id),
  KEY hash (name, hash)
) {passing};

-- Records: small values that are kept beside the locks, of what became of a resource.
CREATE TABLE IF NOT EXISTS {record} (
  name {name} NOT NULL,
  version {id} NOT NULL,
  value {owner} NOT NULL,
  written BIGINT NOT NULL,
  ends BIGINT NOT NULL, -- by the server's clock
  PRIMARY KEY (name),
  KEY ends (ends)
) {passing};

-- What happened, for people.
CREATE TABLE IF NOT EXISTS {log} (
  id {number} PRIMARY KEY,
  at BIGINT NOT NULL,
  event {label} NOT NULL,
  name {name} NOT NULL,
  hold {id} NOT NULL,
  lease {id} NOT NULL,
  fence BIGINT NOT NULL,
  note {label} NOT NULL
) {lasting};

-- schema: the version of these tables. floor: no new row of lock begins below it.
-- era: counts quarters of an hour, for notes. keeper: who observes the leases, and a
-- number that changes when it does. server: who may grant, and since when.
CREATE TABLE IF NOT EXISTS {meta} (
  name {id} NOT NULL PRIMARY KEY,
  value BIGINT NOT NULL DEFAULT 0,
  text {name} NOT NULL DEFAULT ''
) {lasting};

