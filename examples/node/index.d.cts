/** Times are in milliseconds, as everywhere in Node. */

export interface Options {
  /** Path of the sidecar's socket. Default: {@link defaultSocket}. */
  socket?: string;
  /** Shown to people who list locks, at most 128 bytes. */
  name?: string;
  /** Shown to people who list locks, at most 1 KiB in all. No secrets. `leader` is what a leader publishes. */
  metadata?: Record<string, string>;
  /**
   * The sidecar ends the session, and all locks with it, when this process hangs for so long: 100 ms to 1 h. The client
   * sends a keep-alive every third of it. Default: only the end of the process ends the session.
   */
  ttl?: number;
  /**
   * For how long a sidecar is called again that hangs up before it has opened the session,
   * as it does to make room where connections are short. Default: 15 s. Where there is none it is told at once.
   */
  connectTimeout?: number;
  /** Called when the sidecar is about to stop: finish and release within `remaining`. */
  onDraining?: (remaining: number) => void;
}

export interface AcquireOptions {
  /** Beside other shared holders; else alone. */
  shared?: boolean;
  /** At most so long; 0 tries once. Default: until it is granted or `signal` aborts. */
  wait?: number;
  /** The hold is lost after this time, 100 ms to 24 h. Default: never. */
  maxHold?: number;
  /**
   * For so long after the grant (100 ms to 24 h, at most `maxHold`) the store keeps others out, also after
   * the release, or the death of this process. Not with several resources. Default: as long as the hold lasts.
   */
  minHold?: number;
  /** Who asks, at most 128 bytes; shown in lists. Default: a label for each acquire. */
  owner?: string;
  /**
   * Enters again the hold of another reentrant acquire of the same `owner`, which must be
   * given; release each. Default: each acquire stands alone, so tasks of one
   * process exclude each other, and one that asks twice waits for itself.
   */
  reentrant?: boolean;
  /** One of so many permits, 1 to 1024; all who ask give the same number. See {@link Lock.slot}. */
  limit?: number;
  /** An attempt at something that is done once; {@link LockSidecar.once} is easier. */
  once?: true | OnceOptions;
  /** {@link Lock.detach} may let it live on without this process. Not of several, nor with reentrant, once or minHold. */
  detachable?: boolean;
  /** Ends the wait; nothing stays queued. */
  signal?: AbortSignal;
}

export interface OnceOptions {
  /** For how long the outcome is remembered, 1 s to 400 days. Default: 30 days. */
  keep?: number;
  /** After so many attempts there is no other. Default: no limit. */
  maxAttempts?: number;
}

/** One name, or 2 to 16 different ones: all or none, without deadlock between such requests. */
export type Resource = string | readonly string[];

type Work<T> = (lock: Lock) => T | Promise<T>;

/** A connection to the sidecar: one app session, opened when it is needed. */
export class LockSidecar {
  /** Throws INVALID_REQUEST for an option that nobody knows. */
  constructor(options?: Options);
  /**
   * Runs work while it holds the lock, and releases it however work ends, unless work has.
   * Rejects with a LockLostError when the lock was lost meanwhile.
   */
  hold<T>(resource: Resource, work: Work<T>): Promise<T>;
  hold<T>(resource: Resource, options: AcquireOptions | undefined, work: Work<T>): Promise<T>;
  /**
   * Runs work that is to succeed only once. When it resolves, that is recorded, and later calls reject with
   * ALREADY_DONE. When it rejects the outcome is UNKNOWN, unless work has called `lock.failed()`; the next attempt finds
   * that in `lock.previous`.
   */
  once<T>(resource: string, work: Work<T>): Promise<T>;
  once<T>(resource: string, options: Omit<AcquireOptions, 'once'> & OnceOptions | undefined, work: Work<T>): Promise<T>;
  /**
   * Opens the session now, for instance to fail at the start when there is no sidecar; also after `close()`.
   * One that hangs up is called again, see `connectTimeout`.
   */
  open(): Promise<void>;
  /**
   * Takes a lock. When it rejects, nothing is held. Of more acquires than the sidecar takes at a time, the others queue here, in
   * order; `wait` and `signal` count from the call. LIMIT_EXCEEDED: a try for which there was no room for 5 s.
   */
  acquire(resource: Resource, options?: AcquireOptions): Promise<Lock>;
  /**
   * Attaches a lock that was detached: it is one of this process, with the fence that it had. Who has it attached elsewhere loses
   * it, with TAKEN_OVER. Its release ends it, and the handle; when this process ends without that, or its sidecar, it is
   * detached again. When its time is over it is lost, with MAX_HOLD. NOT_HOLDER: it was released, or its time is over.
   */
  attach(handle: Detached | string, options?: Pick<AcquireOptions, 'owner' | 'signal'>): Promise<Lock>;
  /** Attaches, runs work while it holds the lock, and releases it, as {@link LockSidecar.hold} does. */
  holdAttached<T>(handle: Detached | string, work: Work<T>): Promise<T>;
  holdAttached<T>(
    handle: Detached | string, options: Pick<AcquireOptions, 'owner' | 'signal'> | undefined, work: Work<T>,
  ): Promise<T>;
  /**
   * Lets a lock that was detached end so many milliseconds from now (1 s to 24 h), attached or not. Who has it attached calls this,
   * and then `lock.extend()`: it does not know of the new end by itself. NOT_HOLDER: as for `attach`.
   */
  extendDetached(handle: Detached | string, ttl: number): Promise<Detached>;
  /** Ends a lock that was detached. Who has it attached loses it, with TAKEN_OVER. NOT_HOLDER: as for `attach`. */
  releaseDetached(handle: Detached | string): Promise<void>;
  /** The sidecar is about to stop: finish, and release. */
  readonly draining: boolean;
  /** Lets this process end while it holds locks: they are then free. Waits keep it alive all the same. */
  unref(): this;
  /** The opposite, and the default: what is held keeps this process alive. */
  ref(): this;

  /** Who holds a resource and who waits for it, everywhere. This and what follows is the JSON of docs/api.md. */
  get(resource: string): Promise<LockState>;
  /** Whether some app holds it, here or anywhere else. */
  held(resource: string): Promise<boolean>;
  /**
   * What `get` tells, of all resources with that prefix that are held or waited for, in byte order. Where shards of the store do not
   * answer it throws an {@link IncompleteError}, after what the others have.
   */
  list(prefix?: string): AsyncGenerator<LockState, void, void>;
  /** What is there, then each change that the sidecar sees when it looks, once an interval. `return()` ends it, also while somebody waits for a change. */
  watch(prefix?: string, options?: { interval?: number }): AsyncGenerator<LockChange, void, void>;
  /** Takes a lock from its holders, or a waiter out of the queue. For admins. Resolves when it is gone, with the ids. */
  force(resource: string, options?: { lockId?: string; grace?: number }): Promise<string[]>;
  /** The sidecar itself. */
  info(): Promise<Record<string, unknown>>;
  /** Who leads: who holds the resource alone, and the metadata `leader` that it publishes. */
  leader(resource: string): Promise<Leader>;
  /** Who leads, then each change. `return()` ends it, also while somebody waits for a change. */
  watchLeader(resource: string, options?: { interval?: number }): AsyncGenerator<Leader, void, void>;

  /** Releases everything and ends the session. Then only `open()` opens another. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface LockState {
  resource: string;
  holders: Record<string, unknown>[];
  waiters: Record<string, unknown>[];
}

/**
 * `CURRENT`: was there when the watch began; `CHANGED`; `FREE`: nobody holds it or waits for it any more; `SYNCED`: all that was there has been
 * told, without a lock; `MISSING`, without a lock: these shards of the store do not answer, and what they have stays as it was seen
 * last. None: all answer again.
 */
export interface LockChange {
  kind: string;
  lock?: LockState | null;
  missingShards?: string[];
}

export interface Leader {
  resource: string;
  leads: boolean;
  value: string;
  holder?: Record<string, unknown> | null;
  candidates: number;
}

/** A statement for your own transaction on the database that is also the store, see docs/api.md. */
export interface Guard { dialect: string; sql: string; args: string[] }

/** What one acquire got. */
export class Lock {
  private constructor();
  readonly id: string;
  /** Of several: their names with commas. */
  readonly resource: string;
  readonly shared: boolean;
  /** Send it with every write, and let the receiver refuse a smaller one. Of several each has its own: see `parts`. */
  readonly fence: bigint;
  /** From MySQL, MariaDB and PostgreSQL. */
  readonly guard?: Guard;
  /** Of a permit: which of them it is, 0 to `limit`-1. No other that is held has it. */
  readonly slot?: number;
  /** Of several resources: what each has; else empty. */
  readonly parts: { resource: string; lockId: string; fence: bigint; guard?: Guard }[];
  /** Of what is done once: which attempt this is, from 1. */
  readonly attempt?: number;
  /** Of what is done once: what became of the attempt before, where one is known. */
  readonly previous?: { state: 'UNKNOWN' | 'FAILED' | 'SUCCEEDED'; attempt: number; note: string; [field: string]: unknown };
  /** Of what is done once, on a database: records the success in your own transaction. */
  readonly outcomeGuard?: Guard;
  /** How many acquires of this hold are not released yet: one, unless reentrant. */
  readonly count: number;
  /** This acquire was released, or its hold detached. */
  readonly released: boolean;
  /** Aborts with a LockLostError when the lock is lost. Hand it to fetch and the like. */
  readonly signal: AbortSignal;
  readonly lost: boolean;
  /** The store does not answer: nothing is lost yet, but start nothing that takes long. */
  readonly jeopardy: boolean;
  /** How long the hold may be relied on without further news; 0 when it is lost or released. */
  validFor(): number;
  /** Throws unless the lock is held at this moment, by this process's own clock: LOCK_LOST, or NOT_HOLDER after it was released or detached. */
  check(): void;
  /**
   * Rejects with a LockLostError when the lock was lost; the sidecar is told all the same that the work has stopped. After any
   * other error it is released, be it late. NOT_HOLDER: it was released before.
   */
  release(): Promise<void>;
  /** Turns an exclusive hold into a shared one without letting go. */
  downgrade(): Promise<void>;
  /** Lets the hold end so many milliseconds from now, whatever its maxHold was before. */
  extend(maxHold: number): Promise<void>;
  /**
   * Lets it live for so many milliseconds (1 s to 24 h) in the store, whatever becomes of this process and its sidecar. Of what is
   * `detachable`, or attached. Whoever has the handle can {@link LockSidecar.attach} it, with the same fence. Here it is
   * over then, as after a release. INVALID_REQUEST, LIMIT_EXCEEDED: it stays. LOCK_LOST. NOT_HOLDER: it was released, or detached, before.
   * After any other error it is lost, and free soon: nobody has its handle.
   */
  detach(ttl: number): Promise<Detached>;
  /**
   * Of what is done once: records that it is done, and releases. LOCK_LOST: somebody else has started, and nothing is recorded.
   * STORE_UNAVAILABLE, SIDECAR_SILENT: it may be recorded or not, and the lock stays; say it again.
   */
  succeeded(note?: string): Promise<void>;
  /** Of what is done once: records that nothing was done, and releases. */
  failed(note?: string): Promise<void>;
  /** What logs show of it, which `console.log` does too. */
  toJSON(): Record<string, unknown>;
  /** The end of `await using`: releases, unless that was done. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A lock that lives by a time of its own in the store. Whoever has its handle has it. */
export class Detached {
  private constructor();
  /** A password for this one lock: hand it on, and do not log it. `console.log` and JSON of this object do not show it. */
  get handle(): string;
  readonly resource: string;
  readonly shared: boolean;
  readonly fence: bigint;
  /** Of a permit: how many there are. */
  readonly limit?: number;
  /** How long the store keeps others out at least, unless somebody releases it. It does not know of later extensions. */
  validFor(): number;
  toJSON(): Record<string, unknown>;
}

export type Reason =
  | 'LOCK_HELD' | 'WAIT_TIMEOUT' | 'LOCK_LOST' | 'SESSION_NOT_FOUND' | 'NOT_HOLDER' | 'UPGRADE_REFUSED'
  | 'DEADLOCK' | 'ALREADY_DONE' | 'ATTEMPTS_EXHAUSTED' | 'UNSUPPORTED'
  | 'STORE_UNAVAILABLE' | 'LIMIT_EXCEEDED' | 'INVALID_REQUEST' | 'PERMISSION_DENIED' | 'DRAINING'
  | 'CANCELLED' | 'NO_SUCH_CALL' | 'INTERNAL'
  /** These come from the client: no sidecar at the socket, none that answers, its end, our close(). */
  | 'NO_SIDECAR' | 'SIDECAR_SILENT' | 'SIDECAR_GONE' | 'SESSION_CLOSED';

export class SidecarError<R extends Reason = Reason> extends Error {
  /** Whether it is an error of this package, with one of these reasons if any are given. */
  static is(err: unknown): err is SidecarError;
  static is<R extends Reason>(err: unknown, ...reasons: R[]): err is SidecarError<R>;
  readonly reason: R;
  /** For instance holder_pid; see docs/api.md. */
  readonly metadata: Record<string, string>;
  toJSON(): Record<string, unknown>;
}

export class LockLostError extends SidecarError<'LOCK_LOST'> {
  readonly lostReason:
    | 'LEASE_EXPIRED' | 'LEASE_LOST' | 'STORE_LOST' | 'FORCED' | 'MAX_HOLD' | 'SESSION_EXPIRED' | 'STOPPING' | 'TAKEN_OVER'
    | 'SIDECAR_SILENT' | 'SIDECAR_GONE' | 'SESSION_CLOSED' | 'UNKNOWN';
  readonly resource: string;
  readonly lockId: string;
  readonly fence: bigint;
  /** How long the sidecar still keeps others out. */
  graceLeft(): number;
}

/** Ends a list that lacks what some shards of the store have, which did not answer. It comes after what the others have. */
export class IncompleteError extends SidecarError<'STORE_UNAVAILABLE'> {
  /** Their names. */
  readonly missing: string[];
}

/** Where sidecar and clients meet when nobody says otherwise. */
export function defaultSocket(): string;
