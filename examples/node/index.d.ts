/** Times are in milliseconds, as everywhere in Node. */

export interface Options {
  /** Path of the sidecar's socket. Default: {@link defaultSocket}. */
  socket?: string;
  /** Shown to people who list locks, at most 128 bytes. */
  name?: string;
  /** Shown to people who list locks, at most 1 KiB in all. No secrets. */
  metadata?: Record<string, string>;
  /**
   * For how long a sidecar is called again that hangs up before it has opened the session,
   * as it does to make room where connections are short. Default: 15 s. Where there is none it is told at once.
   */
  connectTimeout?: number;
}

export interface AcquireOptions {
  /** Beside other shared holders; else alone. */
  shared?: boolean;
  /** At most so long; 0 tries once. Default: until it is granted or `signal` aborts. */
  wait?: number;
  /** The hold is lost after this time, 100 ms to 24 h. Default: never. */
  maxHold?: number;
  /** Who asks, at most 128 bytes; shown in lists. Default: a label for each acquire. */
  owner?: string;
  /**
   * Enters again the hold of another reentrant acquire of the same `owner`, which must be
   * given; release it as often. Default: each acquire stands alone, so tasks of one
   * process exclude each other, and one that asks twice waits for itself.
   */
  reentrant?: boolean;
  /** Ends the wait; nothing stays queued. */
  signal?: AbortSignal;
}

/** A connection to the sidecar: one app session, opened when it is needed. */
export class LockSidecar {
  constructor(options?: Options);
  /**
   * Runs work while it holds the lock, and releases it however work ends.
   * Rejects with a LockLostError when the lock was lost meanwhile.
   */
  hold<T>(resource: string, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  hold<T>(resource: string, options: AcquireOptions, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  /**
   * Opens the session now, for instance to fail at the start when there is no sidecar.
   * One that hangs up is called again, see `connectTimeout`.
   */
  open(): Promise<void>;
  /** Takes a lock. When it rejects, nothing is held. */
  acquire(resource: string, options?: AcquireOptions): Promise<Lock>;
  /** Releases everything and ends the session. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export class Lock {
  private constructor();
  readonly id: string;
  readonly resource: string;
  readonly shared: boolean;
  /** Send it with every write, and let the receiver refuse a smaller one. */
  readonly fence: bigint;
  /** From MySQL and MariaDB: a statement for your own transaction, see docs/api.md. */
  readonly guard?: { dialect: string; sql: string; args: string[] };
  /** How often it must be released (once, unless reentrant); 0 when it was. */
  readonly count: number;
  /** Aborts with a LockLostError when the lock is lost. Hand it to fetch and the like. */
  readonly signal: AbortSignal;
  readonly lost: boolean;
  /** How long the hold may be relied on without further news; 0 when it is lost. */
  validFor(): number;
  /** Throws unless the lock is held at this moment, by this process's own clock. */
  check(): void;
  /**
   * Rejects with a LockLostError when the lock was lost; the sidecar is told all the same
   * that the work has stopped.
   */
  release(): Promise<void>;
  /** Turns an exclusive hold into a shared one without letting go. */
  downgrade(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export type Reason =
  | 'LOCK_HELD' | 'WAIT_TIMEOUT' | 'LOCK_LOST' | 'SESSION_NOT_FOUND' | 'NOT_HOLDER' | 'UPGRADE_REFUSED'
  | 'DEADLOCK' | 'ALREADY_DONE' | 'ATTEMPTS_EXHAUSTED' | 'UNSUPPORTED'
  | 'STORE_UNAVAILABLE' | 'LIMIT_EXCEEDED' | 'INVALID_REQUEST' | 'PERMISSION_DENIED' | 'DRAINING'
  | 'CANCELLED' | 'NO_SUCH_CALL' | 'INTERNAL'
  /** These come from the client: no sidecar at the socket, none that answers, its end, our close(). */
  | 'NO_SIDECAR' | 'SIDECAR_SILENT' | 'SIDECAR_GONE' | 'SESSION_CLOSED';

export class SidecarError extends Error {
  readonly reason: Reason;
  /** For instance holder_pid; see docs/api.md. */
  readonly metadata: Record<string, string>;
}

export class LockLostError extends SidecarError {
  readonly reason: 'LOCK_LOST';
  readonly lostReason:
    | 'LEASE_EXPIRED' | 'LEASE_LOST' | 'STORE_LOST' | 'FORCED' | 'MAX_HOLD' | 'SESSION_EXPIRED' | 'STOPPING'
    | 'SIDECAR_SILENT' | 'SIDECAR_GONE' | 'SESSION_CLOSED' | 'UNKNOWN';
  readonly resource: string;
  readonly lockId: string;
  readonly fence: bigint;
  /** How long the sidecar still keeps others out. */
  graceLeft(): number;
}

/** Where sidecar and clients meet when nobody says otherwise. */
export function defaultSocket(): string;
