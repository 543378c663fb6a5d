'use strict';

// So many acquires of one session the sidecar takes at a time, unless it says otherwise.
const MOST = 1_000;
// From here on an acquire queues here where another for the same resource is on its way. One for a resource
// of which none is still gets through: its holder may wait for nothing else.
const MANY = 800;

/** The acquires of a session: those that are on their way, and those that queue here, as the sidecar takes only so many. */
class Acquires {
  size = 0; // on their way
  #most = MOST;
  #asked = new Map(); // how many are on their way, by what they ask for
  // These queue, in order. Tries go first: they are answered at once.
  #tries = new Set();
  #waits = new Set();
  #lastOrder = 0;
  #stuck = false; // for none of them there is room as long as MANY are on their way, and what they ask for is asked for

  get most() { return this.#most; }

  /** All that queue here. */
  get queued() { return [...this.#tries, ...this.#waits]; }

  /** Whether it is to be sent now: then it is on its way. Else it queues here. */
  enter(call) {
    call.order = ++this.#lastOrder;
    if (this.#isCrowded(call)) {
      this.#queueOf(call).add(call);
      this.#stuck &&= this.#asked.has(call.ask.what);
      return false;
    }
    this.#leaves(call);
    return true;
  }

  /** The next one that is to be sent: it is on its way then. */
  next() {
    if (this.size >= this.#most || this.#tries.size + this.#waits.size === 0 || (this.#stuck && this.size >= MANY)) {
      return undefined;
    }
    for (const queue of [this.#tries, this.#waits]) {
      for (const call of queue) {
        if (!this.#isCrowded(call)) {
          queue.delete(call);
          this.#leaves(call);
          return call;
        }
      }
    }
    this.#stuck = true;
    return undefined;
  }

  /** It is not on its way any more. */
  answered({ ask: { what } }) {
    this.size--;
    const others = this.#asked.get(what) - 1;
    if (others > 0) {
      this.#asked.set(what, others);
    } else {
      this.#asked.delete(what);
      this.#stuck = false;
    }
  }

  /** It was one too many, where `max` is what the sidecar takes, if it says so. It queues in its old place. */
  refused(call, max) {
    this.#most = Math.max(1, Math.min(this.#most, max || this.size));
    const queue = this.#queueOf(call);
    const sorted = [...queue, call].sort((a, b) => a.order - b.order);
    queue.clear();
    sorted.forEach((one) => queue.add(one));
  }

  isQueued(call) {
    return this.#queueOf(call).has(call);
  }

  /** Takes it out of the queue; whether it was there. */
  drop(call) {
    return this.#queueOf(call).delete(call);
  }

  #queueOf({ ask }) {
    return ask.wait === 0 ? this.#tries : this.#waits;
  }

  #isCrowded({ ask }) {
    return this.size >= this.#most || (this.size >= MANY && this.#asked.has(ask.what));
  }

  #leaves({ ask: { what } }) {
    this.size++;
    this.#asked.set(what, (this.#asked.get(what) ?? 0) + 1);
  }
}

module.exports = { Acquires };
