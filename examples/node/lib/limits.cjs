'use strict';

const { after } = require('./holds.cjs');

// Where this process stood still for longer, the sidecar has so long more to write what is left when the socket is read.
const MORE = 1_000;

/**
 * How long answers may take. One timer does for all: it stays when a call is answered, as most are long before, and the
 * next one finds it.
 */
class Limits {
  #calls; // gives those that are not answered
  #over; // called with one that was not answered in time
  #timer;
  #looksAt = Infinity;
  #stoodStill = false; // before the last look

  constructor(calls, over) {
    this.#calls = calls;
    this.#over = over;
  }

  set(call, ms) {
    call.limit = performance.now() + ms;
    this.#lookAt(call.limit);
  }

  #lookAt(at) {
    if (at < this.#looksAt) {
      clearTimeout(this.#timer);
      this.#looksAt = at;
      this.#timer = after(at - performance.now(), () => this.#look());
    }
  }

  #look() {
    const now = performance.now();
    this.#stoodStill = !this.#stoodStill && now - this.#looksAt > MORE;
    this.#looksAt = Infinity;
    if (this.#stoodStill) { // the sidecar had no room to write all
      this.#lookAt(now + MORE);
      return;
    }
    for (const call of this.#calls()) {
      if (call.done || call.limit === undefined) {
        continue;
      }
      if (call.limit <= now) {
        this.#over(call);
      } else {
        this.#lookAt(call.limit);
      }
    }
  }

  /** The session has ended. */
  end() {
    clearTimeout(this.#timer);
    this.#looksAt = -Infinity; // no look any more
  }
}

module.exports = { Limits };
