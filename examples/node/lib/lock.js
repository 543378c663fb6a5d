import { LockLostError, SidecarError } from './errors.js';
import { now, parseDuration } from './clock.js';

/** A hold. Its session makes and changes it; apps only use what is in index.d.ts. */
export class Lock {
  #session;
  #controller = new AbortController();
  #counted; // when its first grant was, on the sidecar's clock
  #until = -Infinity; // as its grants said, and news of the lease that were counted later; on our clock
  #limit = Infinity; // its end by maxHold
  #count = 0;
  unanswered = []; // ids of releases; the session's

  constructor(session, grant) {
    this.#session = session;
    this.#counted = parseDuration(grant.countedAt);
    this.id = grant.lockId;
    this.resource = grant.resource;
    this.shared = grant.mode === 'SHARED';
    this.fence = BigInt(grant.fence);
    this.guard = grant.guard ?? undefined;
  }

  get count() {
    return this.#count;
  }

  get signal() {
    return this.#controller.signal;
  }

  get lost() {
    return this.signal.aborted;
  }

  validFor() {
    if (this.lost || this.#count === 0) {
      return 0;
    }
    return Math.max(0, this.#end() - now());
  }

  check() {
    if (!this.lost && this.#count === 0) {
      throw new SidecarError('NOT_HOLDER', `the lock on "${this.resource}" was released before`);
    }
    if (this.validFor() === 0) {
      this.expire();
      throw this.signal.reason;
    }
  }

  async release() {
    await this.#session.release(this);
  }

  async downgrade() {
    await this.#session.downgrade(this);
  }

  async [Symbol.asyncDispose]() {
    await this.release();
  }

  // What follows is for the session and for LockSidecar.hold.

  /** The release of one who will not call again. */
  async letGo() {
    try {
      await this.#session.release(this);
    } catch (err) {
      this.#session.letGo(this);
      throw err;
    }
  }

  granted(grant, until, limit) {
    this.#count++;
    this.shared = grant.mode === 'SHARED';
    this.#until = Math.max(this.#until, until);
    this.#limit = Math.min(this.#limit, limit);
  }

  /** News are for what was held when they were counted: a later hold may be on another lease. */
  prolong({ counted, until }) {
    if (counted >= this.#counted) {
      this.#until = Math.max(this.#until, until);
    }
  }

  released(times) {
    this.#count -= times;
  }

  /** Marks it as lost, once and for good. */
  lose(lostReason, message, graceEnd) {
    if (!this.lost) {
      const { resource, id: lockId, fence } = this;
      this.#controller.abort(new LockLostError({ resource, lockId, fence, lostReason, message, graceEnd }));
    }
  }

  /** Marks it as lost by this process's own clock, unless it is already. */
  expire() {
    if (now() >= this.#limit) {
      this.lose('MAX_HOLD', 'it was held longer than its maxHold');
    } else {
      this.lose('SIDECAR_SILENT', 'the sidecar was not heard of in time');
    }
  }

  /** When it is over if nothing is heard any more. */
  #end() {
    return Math.min(this.#limit, this.#until);
  }

  /**
   * When the sidecar's silence ends it: at its end, or a little later where that
   * is by maxHold: half of the margin of the lease at most. The sidecar keeps others
   * out meanwhile and tells for how much longer, which is better news than its silence.
   */
  silentAt() {
    const end = this.#end();
    return end + this.#session.slack >= this.#limit ? end + this.#session.slack : end;
  }
}
