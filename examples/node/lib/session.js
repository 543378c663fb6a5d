import { setTimeout as sleep } from 'node:timers/promises';
import { SidecarClock, formatDuration, now, parseDuration } from './clock.js';
import { SidecarError } from './errors.js';
import { ANSWER_LIMIT, call, newAgent, stream } from './http.js';
import { Lock } from './lock.js';

// Node's timers stand still while the machine is suspended; the clock of a hold does not.
const MAX_LOOK = 1_000;
// How long the sidecar may take at most to say that a maxHold is over.
const MAX_SLACK = 250;

// Before a request is sent again.
const SHORTEST_PAUSE = 20;
const LONGEST_PAUSE = 500;

// After these a release is over; after all others the sidecar has not heard of it, or
// nobody knows.
const RELEASED = ['NOT_HOLDER', 'LOCK_LOST'];

// How long the release of what is lost holds up the app.
const LOST_LIMIT = 1_000;

/**
 * One app session: a request that lasts as long as it does and brings its news.
 * When that request ends, at either end, every lock of the session is lost.
 * Other calls have connections of their own, one each at a time.
 */
export class Session {
  slack = 0; // see Lock.silentAt
  error = undefined; // why the session has ended

  #socket;
  #path;
  #agent = newAgent();
  #stream;
  #clock = new SidecarClock();
  #news = { counted: -Infinity, until: -Infinity }; // of the lease: on the sidecar's clock, on ours
  #locks = new Map(); // by id
  #asking = 0; // acquires that were not answered
  #early = new Map(); // losses that came before their grants; only while asking
  #lastId = 0;
  #timer;
  #looksAt = Infinity;

  /** Opens a session. Rejects with a SidecarError. */
  static open(socket, { name, metadata }) {
    const session = new Session();
    session.#socket = socket;
    return new Promise((resolve, reject) => {
      const limit = setTimeout(() => {
        session.#over(new SidecarError('SIDECAR_SILENT', `the sidecar at ${socket} did not answer within ${ANSWER_LIMIT} ms`));
      }, ANSWER_LIMIT);
      const sent = now();
      const line = (news) => {
        if (news.opened) {
          clearTimeout(limit);
          session.#opened(news.opened, sent);
          resolve(session);
        } else {
          session.#event(news);
        }
      };
      session.#stream = stream(socket, '/v1/sessions', { liveness: 'STREAM', name, metadata }, line, (err) => {
        clearTimeout(limit);
        session.#over(err ?? new SidecarError('SIDECAR_GONE', `the connection to the sidecar at ${socket} ended`));
        reject(session.error);
      });
    });
  }

  async acquire(resource, { shared, wait, maxHold, owner, reentrant = false, signal }) {
    if (this.error) {
      throw this.error;
    }
    if (reentrant && owner === undefined) {
      throw new SidecarError('INVALID_REQUEST', 'a reentrant acquire needs an owner: who enters again?', { metadata: { field: 'owner' } });
    }
    const requestId = `${++this.#lastId}`;
    const mode = shared ? 'SHARED' : 'EXCLUSIVE';
    const body = { resource, mode, owner: owner ?? `acquire ${requestId}`, reentrant, requestId };
    let limit = Infinity;
    if (wait !== undefined && wait !== Infinity) {
      body.wait = formatDuration(wait);
      limit = wait + ANSWER_LIMIT;
    }
    if (maxHold !== undefined) {
      body.maxHold = formatDuration(maxHold);
    }
    this.#asking++;
    const sent = now();
    try {
      const grant = await this.#call('POST', '/locks', { body, limit, signal });
      return this.#granted(grant, sent, maxHold);
    } catch (err) {
      if (!err?.answered) {
        this.#abandon(requestId);
      }
      throw err;
    } finally {
      if (--this.#asking === 0) {
        this.#early.clear();
      }
    }
  }

  async release(lock) {
    // The same for the retry of one that was not answered, here or by the app:
    // then it takes off no second count.
    const id = lock.unanswered.pop() ?? `release ${++this.#lastId}`;
    const path = `/locks/${lock.id}?requestId=${encodeURIComponent(id)}`;
    if (lock.lost) {
      // So the sidecar knows that the loss was seen, and need not keep others out any
      // longer. It may be what is broken: then it reads this when it is well again.
      const told = this.#call('DELETE', path, { limit: Infinity }).catch(() => {});
      await Promise.race([told, sleep(LOST_LIMIT, undefined, { ref: false })]);
      throw lock.signal.reason;
    }
    try {
      await this.#call('DELETE', path);
    } catch (err) {
      if (!RELEASED.includes(err.reason)) {
        lock.unanswered.push(id);
      }
      throw this.#notHeld(lock, err);
    }
    lock.released(1);
    if (lock.count <= 0) {
      this.#forget(lock);
    }
  }

  /** Releases in the background what could not be released and nobody has any more. */
  async letGo(lock) {
    for (let pause = SHORTEST_PAUSE; lock.unanswered.length > 0 && !this.error; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      await sleep(pause, undefined, { ref: false });
      await this.release(lock).catch(() => {});
    }
  }

  async downgrade(lock) {
    const sent = now();
    try {
      const grant = await this.#call('POST', `/locks/${lock.id}:downgrade`);
      this.#clock.answered(sent, grant.countedAt);
      lock.shared = grant.mode === 'SHARED';
    } catch (err) {
      throw this.#notHeld(lock, err);
    }
  }

  /** Ends the session; returns when the sidecar has released its locks. */
  async close() {
    if (this.error) {
      return;
    }
    this.#end(new SidecarError('SESSION_CLOSED', 'this process has closed the session'));
    try {
      await call(this.#socket, this.#agent, 'DELETE', this.#path);
    } catch (err) {
      if (err.reason === 'SIDECAR_SILENT') {
        throw err;
      }
      // Else the session has ended by itself meanwhile.
    } finally {
      this.#disconnect(); // this too ends it
    }
  }

  /**
   * Sends a request until it is answered. Its connection may end before: the sidecar
   * closes one that has been idle, or has just come, to make room. The session does not
   * hang on it, and a request is the same for the sidecar however often it comes.
   */
  async #call(method, path, options = {}) {
    const end = now() + (options.limit ?? ANSWER_LIMIT);
    for (let pause = 0; ; pause = Math.min(2 * pause + SHORTEST_PAUSE, LONGEST_PAUSE)) {
      if (this.error) {
        throw this.error;
      }
      try {
        return await call(this.#socket, this.#agent, method, this.#path + path, options);
      } catch (err) {
        if (options.signal?.aborted && err === options.signal.reason) {
          throw err;
        }
        if (this.error) {
          throw this.error; // its end is the better reason for what a call saw of it
        }
        if (err.reason === 'SESSION_NOT_FOUND' || ['ENOENT', 'ECONNREFUSED'].includes(err.cause?.code)) {
          this.#over(new SidecarError('SIDECAR_GONE', `the sidecar at ${this.#socket} is gone`, { cause: err }));
          throw this.error;
        }
        if (err.reason !== 'SIDECAR_GONE' || now() + pause > end) {
          throw err;
        }
      }
      await sleep(pause, undefined, { signal: options.signal }).catch(() => {}); // call tells that it was aborted
    }
  }

  /** What the sidecar's refusal says about a hold; the error to throw. */
  #notHeld(lock, err) {
    if (err.reason === 'NOT_HOLDER') {
      lock.released(lock.count);
      this.#forget(lock);
    } else if (err.reason === 'LOCK_LOST') { // sooner than its event
      lock.lose(err.metadata.lost_reason ?? 'UNKNOWN', err.message);
      this.#forget(lock);
    }
    return lock.lost ? lock.signal.reason : err;
  }

  #forget(lock) {
    if (this.#locks.get(lock.id) === lock) {
      this.#locks.delete(lock.id);
    }
  }

  #opened(opened, sent) {
    this.#path = `/v1/sessions/${opened.sessionId}`;
    this.#clock.answered(sent, opened.countedAt);
    this.slack = Math.min(MAX_SLACK, parseDuration(opened.leaseMargin) / 2);
  }

  #granted(grant, sent, maxHold) {
    if (this.error) {
      throw this.error;
    }
    this.#clock.answered(sent, grant.countedAt);
    const until = this.#clock.until(grant.countedAt, parseDuration(grant.validFor));
    const limit = maxHold === undefined ? Infinity : this.#clock.until(grant.countedAt, maxHold);
    let lock = this.#locks.get(grant.lockId);
    if (!lock) {
      lock = new Lock(this, grant);
      this.#locks.set(lock.id, lock);
    }
    lock.granted(grant, until, limit);
    lock.prolong(this.#news); // they may overtake the grant
    const early = this.#early.get(lock.id);
    if (early) {
      this.#lost(lock, early);
    } else {
      this.#watch(lock.silentAt());
    }
    return lock;
  }

  /** Makes sure that nobody keeps what nobody waits for. */
  async #abandon(requestId) {
    if (this.error) {
      return;
    }
    for (let pause = SHORTEST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        // The grant may have crossed the end of its connection, and the sidecar may even
        // read the request after this one.
        await this.#call('DELETE', `/requests/${requestId}`);
        return;
      } catch (err) {
        if (!err.answered) { // so the lock may be held, and nobody could release it
          this.#over(err);
        }
        if (err.reason !== 'LIMIT_EXCEEDED' || this.error) { // it had no connection
          return;
        }
      }
      await sleep(pause);
    }
  }

  #event({ lease, lost }) {
    if (lease) {
      const until = this.#clock.until(lease.countedAt, parseDuration(lease.validFor));
      this.#news = { counted: parseDuration(lease.countedAt), until };
      this.#locks.forEach((lock) => lock.prolong(this.#news));
    } else if (lost) {
      const lock = this.#locks.get(lost.lockId);
      if (lock) {
        this.#lost(lock, lost);
      } else if (this.#asking > 0) {
        this.#early.set(lost.lockId, lost);
      }
    }
  }

  #lost(lock, { reason, message, grace, countedAt }) {
    this.#locks.delete(lock.id);
    lock.lose(reason, message, this.#clock.until(countedAt, parseDuration(grace)));
  }

  /** Sees to it that the end of a hold is noticed. One timer does for all. */
  #watch(end) {
    const at = Math.min(end, now() + MAX_LOOK);
    if (at < this.#looksAt) {
      clearTimeout(this.#timer);
      this.#looksAt = at;
      // News that came while this process was busy lie unread in the socket:
      // they are read before a setImmediate.
      this.#timer = setTimeout(() => setImmediate(() => this.#look()), at - now()).unref();
    }
  }

  /** Finds the holds that nothing was heard of for too long. */
  #look() {
    this.#looksAt = Infinity;
    const ends = [];
    for (const lock of this.#locks.values()) {
      const end = lock.silentAt();
      if (end > now()) {
        ends.push(end);
      } else {
        this.#locks.delete(lock.id);
        lock.expire();
      }
    }
    if (ends.length > 0) {
      this.#watch(Math.min(...ends));
    }
  }

  /** The end of the session that nobody asked for. */
  #over(err) {
    this.#end(err);
    this.#disconnect();
  }

  /** Ends the session once: later reasons do not count. */
  #end(err) {
    if (this.error) {
      return;
    }
    this.error = err;
    clearTimeout(this.#timer);
    this.#looksAt = -Infinity; // no look any more
    const locks = [...this.#locks.values()];
    this.#locks.clear();
    const reason = err.reason === 'SESSION_CLOSED' ? err.reason : 'SIDECAR_GONE';
    locks.forEach((lock) => lock.lose(reason, err.message));
  }

  #disconnect() {
    this.#stream.destroy();
    this.#agent.destroy(); // ends the calls in flight
  }
}
