'use strict';

const { inspect } = require('node:util');
const { formatDuration, now } = require('./clock.cjs');
const { SidecarError } = require('./errors.cjs');
const { kinds } = require('./options.cjs');

/** What one acquire got. Its session makes it; apps only use what is in index.d.cts. */
class Lock {
  #session;
  #hold;
  #released = false;

  constructor(session, hold) {
    this.#session = session;
    this.#hold = hold;
  }

  get id() { return this.#hold.id; }

  get resource() { return this.#hold.resource; }

  get shared() { return this.#hold.mode === 'SHARED'; }

  get fence() { return this.#hold.fence; }

  get guard() { return this.#hold.grant.guard ?? undefined; }

  get slot() { return this.#hold.grant.slot ?? undefined; }

  get parts() {
    return (this.#hold.grant.parts ?? []).map(({ resource, lockId, fence, guard }) => (
      { resource, lockId, fence: BigInt(fence), guard: guard ?? undefined }
    ));
  }

  get attempt() { return this.#hold.grant.attempt ?? undefined; }

  get previous() { return this.#hold.grant.previous ?? undefined; }

  get outcomeGuard() { return this.#hold.grant.outcomeGuard ?? undefined; }

  get count() { return this.#hold.count; }

  get released() { return this.#released || this.#hold.detached; }

  get signal() { return this.#hold.signal; }

  get lost() { return this.#hold.problem !== undefined; }

  get jeopardy() { return this.#session.jeopardy; }

  validFor() {
    return this.lost || this.released ? 0 : Math.max(0, this.#hold.end() - now());
  }

  check() {
    const hold = this.#hold;
    if (!hold.problem && !this.released && hold.end() <= now()) {
      this.#session.expire(hold);
    }
    this.#mustBeHeld();
  }

  #mustBeHeld() {
    if (this.#hold.problem) {
      throw this.#hold.problem.again();
    }
    if (this.released) {
      const how = this.#hold.detached ? 'detached' : 'released';
      throw new SidecarError('NOT_HOLDER', `the lock on "${this.resource}" was ${how} before`);
    }
  }

  /** Also what console.log shows. */
  toJSON() {
    const { id, resource, shared, fence, slot, released, lost } = this;
    return { id, resource, shared, fence: `${fence}`, slot, released, lost };
  }

  [inspect.custom](depth, options) {
    return `Lock ${inspect(this.toJSON(), options)}`;
  }

  async release() {
    if (this.released) {
      this.#mustBeHeld();
    }
    this.#released = true; // from now on nobody relies on it, whatever becomes of the call
    await this.#session.release(this.#hold);
  }

  async downgrade() {
    this.#mustBeHeld();
    await this.#session.change(this.#hold, 'downgrade', {});
  }

  async extend(maxHold) {
    kinds.limited('maxHold', maxHold);
    this.#mustBeHeld();
    await this.#session.change(this.#hold, 'extend', { maxHold: formatDuration(maxHold) });
  }

  async detach(ttl) {
    kinds.limited('ttl', ttl);
    this.#mustBeHeld();
    return this.#session.detach(this.#hold, ttl);
  }

  async succeeded(note = '') {
    await this.#conclude('SUCCEEDED', note);
  }

  async failed(note = '') {
    await this.#conclude('FAILED', note);
  }

  async #conclude(outcome, note) {
    kinds.text('note', note);
    await this.#session.conclude(this.#hold, outcome, note, !this.released);
    this.#released = true;
  }

  /** The end of a block: what was released or detached in it is done. */
  async [Symbol.asyncDispose]() {
    if (this.released) {
      return;
    }
    try {
      await this.release();
    } catch (err) {
      if (err.reason === 'LOCK_LOST') {
        throw err;
      }
      if (!SidecarError.is(err, 'SIDECAR_GONE', 'SESSION_CLOSED')) { // after these it is free
        process.emitWarning(`the lock on "${this.resource}" is free a little later: ${err.message}`, 'LockSidecarWarning');
      }
    }
  }
}

module.exports = { Lock };
