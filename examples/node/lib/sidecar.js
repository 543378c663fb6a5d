import { Session } from './session.js';
import { defaultSocket } from './socket.js';

/** The sidecar beside this app. What its methods promise is in index.d.ts. */
export class LockSidecar {
  #options;
  #opening; // promise of the session

  constructor(options = {}) {
    this.#options = options;
  }

  async hold(resource, options, work) {
    if (typeof options === 'function') {
      [options, work] = [{}, options];
    }
    const lock = await this.acquire(resource, options);
    let result;
    try {
      result = await work(lock);
    } catch (err) {
      await lock.release().catch(() => {}); // what work says is the better error
      throw err;
    }
    await lock.release();
    return result;
  }

  async open() {
    await this.#session();
  }

  async acquire(resource, options = {}) {
    const session = await unless(options.signal, this.#session());
    return session.acquire(resource, options);
  }

  async close() {
    const opening = this.#opening;
    this.#opening = undefined;
    const session = await opening?.catch(() => {}); // it never was
    await session?.close();
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }

  /** The session of this process; a new one where the last has ended. */
  async #session() {
    const opening = this.#opening;
    const session = await opening;
    if (session && !session.error) {
      return session;
    }
    if (this.#opening === opening) { // nobody else has begun meanwhile
      const mine = Session.open(this.#options.socket ?? defaultSocket(), this.#options);
      this.#opening = mine;
      mine.catch(() => {
        if (this.#opening === mine) {
          this.#opening = undefined;
        }
      });
    }
    return this.#session();
  }
}

/** The promise, unless the signal aborts first. */
function unless(signal, promise) {
  if (!signal) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    if (signal.aborted) {
      promise.catch(() => {});
      aborted();
      return;
    }
    signal.addEventListener('abort', aborted, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', aborted));
  });
}
