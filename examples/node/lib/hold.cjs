'use strict';

const { setMaxListeners } = require('node:events');
const { parseDuration } = require('./clock.cjs');
const { LockLostError } = require('./errors.cjs');

/** A hold as its session knows it. Each acquire that entered it has a Lock. */
class Hold {
  problem = undefined; // why it is lost, once and for good
  count = 0; // acquires that are not released yet
  until = -Infinity; // as its grants said, and news of the lease that were counted later; on our clock
  limit = Infinity; // its end by maxHold, or by its handle where it is attached
  detached = false; // it has left the session so
  #session;
  #counted; // when its first grant was, on the sidecar's clock
  #controller; // made when somebody asks for the signal

  constructor(session, grant) {
    this.#session = session;
    this.#counted = parseDuration(grant.countedAt);
    this.grant = grant;
    this.id = grant.lockId;
    this.resource = grant.resource || grant.parts.map((p) => p.resource).join(', ');
    this.mode = grant.mode;
    this.fence = BigInt(grant.fence);
  }

  get signal() {
    if (!this.#controller) {
      this.#controller = new AbortController();
      setMaxListeners(0, this.#controller.signal); // one hold may have many requests under way
      if (this.problem) {
        this.#controller.abort(this.problem);
      }
    }
    return this.#controller.signal;
  }

  /**
   * News are for what was held when they were counted: a later hold may be on another lease, and so is the
   * lease of one that was over by then, though its loss is still to be read.
   */
  prolong({ counted, at, until }) {
    if (counted >= this.#counted && at < this.until) {
      this.until = Math.max(this.until, until);
    }
  }

  lose({ reason: lostReason, message, graceEnd }) {
    if (!this.problem) {
      const { resource, id: lockId, fence } = this;
      this.problem = new LockLostError({ resource, lockId, fence, lostReason, message, graceEnd });
      this.#controller?.abort(this.problem);
    }
  }

  /** When it is over if nothing is heard any more. */
  end() {
    return Math.min(this.limit, this.until);
  }

  /**
   * When the sidecar's silence ends it: at its end, or a little later where that
   * is by maxHold: half of the margin of the lease at most. The sidecar keeps others
   * out meanwhile and tells for how much longer, which is better news than its silence.
   */
  silentAt() {
    const end = this.end();
    return end + this.#session.slack >= this.limit ? end + this.#session.slack : end;
  }
}

module.exports = { Hold };
