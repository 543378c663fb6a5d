import { now } from './clock.js';

/** What the sidecar refuses, or what the client finds out about it. Go by `reason`. */
export class SidecarError extends Error {
  constructor(reason, message, { metadata = {}, cause } = {}) {
    super(message, cause && { cause });
    this.reason = reason;
    this.metadata = metadata;
  }

  get name() {
    return this.constructor.name;
  }
}

/** A hold is over though it was not released. It is never undone. */
export class LockLostError extends SidecarError {
  #graceEnd;

  constructor({ resource, lockId, fence, lostReason, message, graceEnd = 0, cause }) {
    super('LOCK_LOST', `the lock on "${resource}" is lost: ${message}`, { cause });
    Object.assign(this, { resource, lockId, fence, lostReason });
    this.#graceEnd = graceEnd;
  }

  graceLeft() {
    return Math.max(0, this.#graceEnd - now());
  }
}

/** Reads an error of the API. */
export function fromStatus(status) {
  const info = status.details?.find((d) => d.domain === 'locksidecar') ?? {};
  return new SidecarError(info.reason ?? 'INTERNAL', status.message ?? 'the sidecar gave no reason', {
    metadata: info.metadata,
  });
}

/** Says what to do about a socket that does not work. */
export function fromConnection(path, err) {
  const start = `locksidecar serve --socket ${path}`;
  const hint = {
    ENOENT: `there is no such socket; start a sidecar with: ${start}`,
    ECONNREFUSED: `the sidecar that made it is gone; start one with: ${start}`,
    EACCES: 'this user may not connect to it; see its mode and that of its directory',
    ENOTSOCK: 'it is not a socket',
  }[err.code];
  if (hint) {
    return new SidecarError('NO_SIDECAR', `no sidecar answers at ${path}: ${hint}`, { cause: err });
  }
  return new SidecarError('SIDECAR_GONE', `the connection to the sidecar at ${path} ended`, { cause: err });
}
