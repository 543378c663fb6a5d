'use strict';

const { setTimeout: sleep } = require('node:timers/promises');
const { early, formatDuration, now } = require('./clock.cjs');
const { Detached } = require('./detached.cjs');
const { SidecarError, passes } = require('./errors.cjs');
const look = require('./look.cjs');
const { check, checkClient, kinds, readAcquire, readAttach, readHandle } = require('./options.cjs');
const { Session } = require('./session.cjs');
const { onAbort } = require('./signals.cjs');
const { defaultSocket } = require('./socket.cjs');

const CONNECT_TIMEOUT = 15_000;

// Nobody can ask for anything more by a client that nobody has: its session ends when that holds nothing.
const dropped = new FinalizationRegistry(({ session }) => session?.retire());

/** The sidecar beside this app. What its methods promise is in index.d.cts. */
class LockSidecar {
  #options;
  #opening; // promise of the session
  #last = { session: undefined }; // the session, when it is open
  #closed = false;
  #refs = true;

  constructor(options = {}) {
    checkClient(options);
    this.#options = options;
    dropped.register(this, this.#last);
  }

  async hold(resource, options, work) {
    if (typeof options === 'function') {
      [options, work] = [{}, options];
    }
    kinds.call('work', work);
    return this.#during(await this.acquire(resource, options), work);
  }

  async once(resource, options, work) {
    if (typeof options === 'function') {
      [options, work] = [{}, options];
    }
    kinds.call('work', work);
    const { keep, maxAttempts, ...others } = options ?? {};
    const lock = await this.acquire(resource, { ...others, once: { keep, maxAttempts } });
    return this.#during(lock, async () => {
      const result = await work(lock);
      if (!lock.released) {
        await lock.succeeded();
      }
      return result;
    });
  }

  async #during(lock, work) {
    let result;
    try {
      result = await work(lock);
    } catch (err) {
      await lock[Symbol.asyncDispose]().catch(() => {}); // what work says is the better error
      throw err;
    }
    await lock[Symbol.asyncDispose]();
    return result;
  }

  async open() {
    this.#closed = false;
    await this.#session();
  }

  acquire(resource, options = {}) {
    return this.#take(readAcquire, resource, options);
  }

  /** On a new session again, as long as the end of the last one was not noticed before. What was not sent is no loss. */
  async #take(read, what, options) {
    const ask = read(what, options);
    const { signal } = options;
    signal?.throwIfAborted();
    let session = this.#last.session;
    for (;;) {
      if (!session || session.error || this.#closed) {
        session = await unless(signal, this.#session());
      }
      const lock = await session.acquire(ask, signal);
      if (lock) {
        return lock;
      }
    }
  }

  attach(handle, options = {}) {
    return this.#take(readAttach, handle, options);
  }

  async holdAttached(handle, options, work) {
    if (typeof options === 'function') {
      [options, work] = [{}, options];
    }
    kinds.call('work', work);
    return this.#during(await this.attach(handle, options), work);
  }

  async extendDetached(handle, ttl) {
    kinds.limited('ttl', ttl);
    const sent = early();
    const body = { handle: readHandle(handle), ttl: formatDuration(ttl) };
    return new Detached(await this.#look('extendHandle', body, 'detached'), sent);
  }

  async releaseDetached(handle) {
    await this.#look('releaseHandle', { handle: readHandle(handle) }, 'handleReleased');
  }

  get draining() {
    return this.#last.session?.draining === true && !this.#last.session.error;
  }

  ref() {
    this.#refs = true;
    this.#last.session?.holdsRef(true);
    return this;
  }

  unref() {
    this.#refs = false;
    this.#last.session?.holdsRef(false);
    return this;
  }

  // Looks. What they give is the API's JSON.

  get(resource) {
    return this.#look('getLock', { resource }, 'lock');
  }

  async held(resource) {
    return (await this.get(resource)).holders.some((holder) => !holder.parked);
  }

  list(prefix = '') {
    kinds.text('prefix', prefix);
    return look.pages(this.#path(), 'listLocks', { prefix }, 'locks');
  }

  watch(prefix = '', options = {}) {
    kinds.text('prefix', prefix);
    return look.stream(this.#path(), 'watchLocks', { prefix, partial: true, ...interval(options) }, 'watched');
  }

  async force(resource, options = {}) {
    check(options, { lockId: kinds.text, grace: kinds.limited });
    const { lockId = '', grace = 2_000 } = options;
    return (await this.#look('forceRelease', { resource, lockId, grace: formatDuration(grace) }, 'forceReleased', grace)).lockIds;
  }

  info() {
    return this.#look('getInfo', {}, 'info');
  }

  leader(resource) {
    return this.#look('getLeader', { resource }, 'leader');
  }

  watchLeader(resource, options = {}) {
    kinds.text('resource', resource);
    return look.stream(this.#path(), 'watchLeader', { resource, ...interval(options) }, 'leader');
  }

  async #look(kind, body, answer, more) {
    if ('resource' in body) {
      kinds.text('resource', body.resource);
    }
    return look.ask(this.#path(), kind, body, answer, more);
  }

  async close() {
    this.#closed = true;
    const opening = this.#opening;
    this.#opening = undefined;
    const session = await opening?.catch(() => {}); // it never was
    await session?.close();
  }

  async [Symbol.asyncDispose]() {
    await this.close();
  }

  #path() {
    return this.#options.socket ?? defaultSocket();
  }

  /** The session of this process; a new one where the last has ended. */
  async #session() {
    const opening = this.#opening;
    const session = await opening;
    if (this.#closed) {
      throw closed();
    }
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
   * where connections are short, it does so to make room. So is one that takes no connections for now.
   */
  async #open(isWanted) {
    const path = this.#path();
    const end = now() + (this.#options.connectTimeout ?? CONNECT_TIMEOUT);
    for (let pause = 50; ; pause = Math.min(2 * pause, 1_000)) {
      try {
        const session = await Session.open(path, this.#options, this.#refs);
        session.holdsRef(this.#refs);
        this.#last.session = session;
        return session;
      } catch (err) {
        if (!passes(err) || now() + pause > end) {
          throw err;
        }
      }
      await sleep(pause);
      if (!isWanted()) {
        throw closed();
      }
    }
  }
}

function closed() {
  return new SidecarError('SESSION_CLOSED', 'this process has closed the session; open() opens another');
}

function interval(options) {
  check(options, { interval: kinds.limited });
  return { interval: formatDuration(options.interval ?? 1_000) };
}

/** The promise, unless the signal aborts first. Errors are those of who calls. */
async function unless(signal, promise) {
  let off;
  const aborted = signal && new Promise((resolve, reject) => {
    off = onAbort(signal, () => reject(signal.reason));
  });
  try {
    return await (aborted ? Promise.race([promise, aborted]) : promise);
  } catch (err) {
    throw err instanceof SidecarError ? err.again() : err;
  } finally {
    off?.();
    promise.catch(() => {});
  }
}

module.exports = { LockSidecar };
