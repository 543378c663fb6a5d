'use strict';

const { now } = require('./clock.cjs');

/** What the sidecar refuses, or what the client finds out about it. Go by `reason`. */
class SidecarError extends Error {
  constructor(reason, message, { metadata = {}, cause } = {}) {
    super(message, cause && { cause });
    this.reason = reason;
    this.metadata = metadata;
  }

  get name() {
    return 'SidecarError';
  }

  /** Whether it is an error of this package, with one of these reasons if any are given. */
  static is(err, ...reasons) {
    return err instanceof SidecarError && (reasons.length === 0 || reasons.includes(err.reason));
  }

  /** The same error with the stack of who gets it: it was made where the sidecar's line was read. */
  again() {
    return new SidecarError(this.reason, this.message, this);
  }

  toJSON() {
    const { name, message, reason, metadata } = this;
    return { name, message, reason, metadata };
  }
}

/** A hold is over though it was not released. It is never undone. */
class LockLostError extends SidecarError {
  #init;

  constructor(init) {
    const { resource, lockId, fence, lostReason, message, cause } = init;
    super('LOCK_LOST', `the lock on "${resource}" is lost: ${message}`, { cause });
    Object.assign(this, { resource, lockId, fence, lostReason });
    this.#init = init;
  }

  get name() {
    return 'LockLostError';
  }

  graceLeft() {
    return Math.max(0, (this.#init.graceEnd ?? 0) - now());
  }

  again() {
    return new LockLostError(this.#init);
  }

  toJSON() {
    const { resource, lockId, fence, lostReason } = this;
    return { ...super.toJSON(), resource, lockId, fence: `${fence}`, lostReason };
  }
}

/** A list lacks what some shards of the store have. It comes after what the others have. */
class IncompleteError extends SidecarError {
  constructor(missing) {
    super('STORE_UNAVAILABLE', `the list is not complete: these shards of the store do not answer: ${missing.join(', ')}`);
    this.missing = missing;
  }

  get name() {
    return 'IncompleteError';
  }

  again() {
    return new IncompleteError(this.missing);
  }

  toJSON() {
    return { ...super.toJSON(), missing: this.missing };
  }
}

/** Reads an error of the API. */
function fromStatus(status) {
  const info = status.details?.find((d) => d.domain === 'locksidecar') ?? {};
  return new SidecarError(info.reason ?? 'INTERNAL', status.message ?? 'the sidecar gave no reason', {
    metadata: info.metadata,
  });
}

/** Says what to do about a socket that does not work. */
function fromConnection(path, err) {
  const start = `locksidecar serve --socket ${path}`;
  const hint = {
    ENOENT: `there is no such socket; start a sidecar with: ${start}`,
    ECONNREFUSED: `the sidecar that made it is gone; start one with: ${start}`,
    EACCES: 'this user may not connect to it; see its mode and that of its directory',
    ENOTSOCK: 'it is not a socket',
    EAGAIN: 'it takes no connections; the sidecar may be frozen',
  }[err?.code];
  if (hint) {
    return new SidecarError('NO_SIDECAR', `no sidecar answers at ${path}: ${hint}`, { cause: err });
  }
  return new SidecarError('SIDECAR_GONE', `the connection to the sidecar at ${path} ended`, { cause: err });
}

/** Whether another connection may do: the sidecar hung up, as it does to make room, or takes none for now. */
function passes(err) {
  return err.reason === 'SIDECAR_GONE' || takesNone(err);
}

/** Whether it takes none for now: it was not asked anything then. */
function takesNone(err) {
  return err.cause?.code === 'EAGAIN';
}

module.exports = { IncompleteError, LockLostError, SidecarError, fromConnection, fromStatus, passes, takesNone };
