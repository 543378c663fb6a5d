'use strict';

const { now, parseDuration } = require('./clock.cjs');

/** What lives by a time of its own in the store. What apps see of it is in index.d.cts. */
class Detached {
  #handle; // a password: not in console.log, nor in JSON
  #until;

  /** What came as the answer to a request that was sent then. */
  constructor({ handle, resource, mode, fence, limit, validFor }, sent) {
    this.#handle = handle;
    this.#until = sent + parseDuration(validFor);
    this.resource = resource;
    this.shared = mode === 'SHARED';
    this.fence = BigInt(fence);
    this.limit = limit ?? undefined;
    Object.freeze(this);
  }

  get handle() { return this.#handle; }

  validFor() {
    return Math.max(0, this.#until - now());
  }

  toJSON() {
    const { resource, shared, fence, limit } = this;
    return { resource, shared, fence: `${fence}`, limit };
  }
}

module.exports = { Detached };
