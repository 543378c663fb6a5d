import { setTimeout as sleep } from 'node:timers/promises';
import { now } from './clock.js';
import { SidecarError } from './errors.js';
import { Session } from './session.js';
import { defaultSocket } from './socket.js';

const CONNECT_TIMEOUT = 15_000;

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
      await lock.letGo().catch(() => {}); // what work says is the better error
      throw err;
    }
    await lock.letGo();
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
    if (this.#opening === opening) { // nobody else has started meanwhile
      const mine = this.#open(() => this.#opening === mine);
      this.#opening = mine;
      mine.catch(() => {
        if (this.#opening === mine) {
          this.#opening = undefined;
        }
      });
    }
    return this.#session();
  }

  /**
   * Opens a session. A sidecar that hangs up before it has answered is asked again:
   * where connections are short, it does so to make room.
   */
  async #open(isWanted) {
    const socket = this.#options.socket ?? defaultSocket();
    const end = now() + (this.#options.connectTimeout ?? CONNECT_TIMEOUT);
    for (let pause = 50; ; pause = Math.min(2 * pause, 1_000)) {
      try {
        return await Session.open(socket, this.#options);
      } catch (err) {
        if (err.reason !== 'SIDECAR_GONE' || now() + pause > end) {
          throw err;
        }
      }
      await sleep(pause);
      if (!isWanted()) {
        throw new SidecarError('SESSION_CLOSED', 'this process has closed the session');
      }
    }
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
