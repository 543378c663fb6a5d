'use strict';

const { SidecarClock, early, now, parseDuration } = require('./clock.cjs');
const { Hold } = require('./hold.cjs');

// Node's timers stand still while the machine is suspended; the clock of a hold does not.
const MAX_LOOK = 1_000;
// How long the sidecar may take at most to say that a maxHold is over.
const MAX_SLACK = 250;
const MAX_TIMER = 2 ** 31 - 1;
// So many losses are kept for grants that come after them.
const MOST_EARLY = 10_000;
const SILENT = { reason: 'SIDECAR_SILENT', message: 'the sidecar was not heard of in time' };
const HELD_TOO_LONG = { reason: 'MAX_HOLD', message: 'it was held longer than its maxHold' };

/**
 * Calls back after a time, and after what came meanwhile: where this process was busy,
 * news lie unread in the socket, and are read before a setImmediate.
 */
function after(ms, then) {
  return setTimeout(() => setImmediate(then), Math.min(ms, MAX_TIMER)).unref();
}

/** What a session holds, until when, and what of it is lost. */
class Holds {
  slack = 0; // see Hold.silentAt
  #acquires;
  #changed; // called when something is not held any more
  #byId = new Map();
  #clock = new SidecarClock();
  #news = { counted: -Infinity, at: -Infinity, until: -Infinity }; // of the lease: when it was counted, on the sidecar's clock and on ours, and its end
  #early = new Map(); // losses, by lock id, for grants that come after them; only while acquires are on their way
  #timer;
  #looksAt = Infinity;

  constructor(acquires, changed) {
    this.#acquires = acquires;
    this.#changed = changed;
  }

  get size() { return this.#byId.size; }

  opened(call, { countedAt, leaseMargin }) {
    this.#clock.answered(call.sent, countedAt);
    this.slack = Math.min(MAX_SLACK, parseDuration(leaseMargin) / 2);
  }

  granted(call, grant) {
    let hold = this.#byId.get(grant.lockId);
    if (!hold) {
      hold = new Hold(this, grant);
      this.#byId.set(hold.id, hold);
    }
    hold.count++;
    hold.mode = grant.mode;
    this.answered(call, grant);
    hold.until = Math.max(hold.until, this.until(grant.countedAt, grant.validFor));
    hold.limit = Math.min(hold.limit, this.#limit(call, grant));
    hold.prolong(this.#news); // they may overtake the grant
    const lost = this.#early.get(hold.id);
    if (lost) {
      this.lose(hold, lost);
    } else {
      this.#watch(hold.silentAt());
    }
    return hold;
  }

  /** What was asked was counted at that moment on the sidecar's clock. */
  answered(call, { countedAt }) {
    this.#clock.answered(call.sent, countedAt);
  }

  /** The moment on our clock at which a time of the sidecar's is over. */
  until(countedAt, left) {
    return this.#clock.until(countedAt, parseDuration(left));
  }

  extended(call, grant) {
    const hold = call.about;
    hold.limit = this.#limit(call, grant);
    hold.until = Math.max(hold.until, this.until(grant.countedAt, grant.validFor));
    this.#watch(hold.silentAt());
  }

  /** When a hold ends by what was asked for, or by its handle where it is attached. */
  #limit({ maxHold }, { countedAt, endsIn }) {
    return Math.min(maxHold ? this.until(countedAt, maxHold) : Infinity, endsIn ? this.until(countedAt, endsIn) : Infinity);
  }

  leave(hold) {
    hold.count = Math.max(0, hold.count - 1);
    if (hold.count === 0) {
      this.#byId.delete(hold.id);
      this.#changed();
    }
  }

  // Ends.

  lease({ countedAt, validFor }) {
    this.#news = { counted: parseDuration(countedAt), at: this.until(countedAt), until: this.until(countedAt, validFor) };
    this.#byId.forEach((hold) => hold.prolong(this.#news));
  }

  /** The sidecar says that one is lost. */
  lost({ lockId, reason, message, grace, countedAt }) {
    const loss = { reason, message, graceEnd: this.until(countedAt, grace) };
    const hold = this.#byId.get(lockId);
    if (hold) {
      this.lose(hold, loss);
    } else {
      this.#remember(lockId, loss);
    }
  }

  lose(hold, loss) {
    this.#byId.delete(hold.id);
    hold.lose(loss);
    this.#remember(hold.id, loss); // who re-enters it may have a grant on its way
    this.#changed();
  }

  #remember(lockId, loss) {
    if (this.#acquires.size > 0) {
      this.#early.set(lockId, loss);
      if (this.#early.size > MOST_EARLY) {
        this.#early.delete(this.#early.keys().next().value); // the oldest
      }
    }
  }

  /** No acquire is on its way any more. */
  forgetEarly() {
    if (this.#early.size > 0) { // to clear an empty one makes garbage
      this.#early.clear();
    }
  }

  /** Marks a hold as lost where its end is over. */
  expire(hold, end = hold.end()) {
    if (hold.problem || !this.#byId.has(hold.id)) {
      return;
    }
    const at = now();
    if (at >= end) {
      this.lose(hold, at < hold.limit ? SILENT : HELD_TOO_LONG);
    }
  }

  /** Sees to it that the end of a hold is noticed. One timer does for all. */
  #watch(end) {
    const at = Math.min(end, early() + MAX_LOOK);
    if (at < this.#looksAt) {
      clearTimeout(this.#timer);
      this.#looksAt = at;
      this.#timer = after(at - early(), () => this.#look());
    }
  }

  /** Finds the holds that nothing was heard of for too long. */
  #look() {
    this.#looksAt = Infinity;
    this.#byId.forEach((hold) => this.expire(hold, hold.silentAt()));
    if (this.#byId.size > 0) {
      this.#watch(Math.min(...[...this.#byId.values()].map((hold) => hold.silentAt())));
    }
  }

  /** The session has ended. */
  end(loss) {
    clearTimeout(this.#timer);
    this.#looksAt = -Infinity; // no look any more
    const holds = [...this.#byId.values()];
    this.#byId.clear();
    this.#early.clear();
    holds.forEach((hold) => hold.lose(loss));
  }
}

module.exports = { Holds, after };
