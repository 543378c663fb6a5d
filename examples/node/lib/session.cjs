'use strict';

const { Acquires } = require('./acquires.cjs');
const { early, formatDuration, now } = require('./clock.cjs');
const { Detached } = require('./detached.cjs');
const { SidecarError, fromStatus } = require('./errors.cjs');
const { Holds, after } = require('./holds.cjs');
const { Limits } = require('./limits.cjs');
const { connect } = require('./lines.cjs');
const { Lock } = require('./lock.cjs');
const { onAbort } = require('./signals.cjs');

/** How long the sidecar may take for what it answers at once, and beyond a wait. */
const ANSWER_LIMIT = 5_000;
// After so long without a word a wait without end asks whether the sidecar is there, and
// after so long without an answer it takes it for frozen.
const PING_AFTER = 5_000;
// The sidecar ends a connection at a longer line, and with it all that the session holds.
const LONGEST_LINE = 65_536;

/**
 * One app session: a connection with lines of JSON. When it ends, at either end, every
 * lock of the session is lost.
 *
 * What an answer says is carried out when its line is read, in the order of the lines.
 * Errors are thrown by async functions, so that their stacks lead to who called.
 */
class Session {
  id = '';
  jeopardy = false;
  draining = false;
  error = undefined; // why the session has ended

  #path;
  #onDraining;
  #lines;
  #ended; // promise: the connection has
  #calls = new Map(); // by request id: not answered yet
  #acquires = new Acquires();
  #holds = new Holds(this.#acquires, () => this.#ref());
  #limits = new Limits(() => [...this.#calls.values(), ...this.#acquires.queued], (call) => this.#late(call));
  #lastId = 0;
  #written = 0; // requests that the kernel has
  #wrote = (err) => { // one function for all writes, which end in their order: one for each costs more than the rest of the write
    if (err) {
      this.#failed ??= this.#written + 1;
    } else {
      this.#written++;
    }
  };
  #failed; // the id of the first one that it did not get
  #keepsAlive; // timer of a session with a ttl
  #listens = false; // for a sidecar that is silent
  #heard = false; // since the last look
  #awaited = 0; // calls that somebody waits for
  #refs = true; // whether the connection keeps this process alive
  #retired = false; // nobody asks for anything more
  #holdsRef; // whether holds do

  /** Opens a session. Rejects with a SidecarError. */
  static async open(path, { name, metadata, ttl, onDraining }, holdsRef) {
    const session = new Session();
    session.#path = path;
    session.#onDraining = onDraining;
    session.#holdsRef = holdsRef;
    session.#ended = new Promise((resolve) => {
      session.#lines = connect(path, (m) => session.#line(m), (err) => {
        session.#end(err, 'SIDECAR_GONE');
        resolve();
      });
    });
    const open = { name, metadata, ttl: ttl === undefined ? undefined : formatDuration(ttl) };
    try {
      await session.#ask('open', open);
    } catch (err) {
      session.#over(err);
      throw err;
    }
    if (ttl !== undefined) {
      session.#keepsAlive = setInterval(() => session.#send('keepAlive', {}), ttl / 3).unref();
    }
    return session;
  }

  /** Undefined: the connection had ended before anything was sent. Another session will do. */
  async acquire(ask, signal) {
    if (this.error) {
      throw this.error.again();
    }
    signal?.throwIfAborted(); // while the session was opened
    ask.deadline ??= early() + ask.wait;
    const call = { ask, maxHold: ask.body.maxHold, done: false };
    if (this.#acquires.enter(call)) {
      this.#sendAcquire(call);
    } else {
      this.#boundWait(call);
    }
    const off = signal && onAbort(signal, () => this.#giveUp(call, signal.reason));
    if (ask.wait === undefined) {
      this.#listen();
    } else {
      this.#limits.set(call, Math.max(0, ask.deadline - early()) + ANSWER_LIMIT);
    }
    const answer = await this.#answer(call);
    clearTimeout(call.due);
    off?.();
    return answer.error?.reason === 'SIDECAR_GONE' && this.#isUnsent(call) ? undefined : unwrap(answer).lock;
  }

  /** The sidecar carries it out in any case, be it late, as long as the session lasts. Throws at once, or gives a promise. */
  release(hold) {
    this.#holds.expire(hold, hold.silentAt());
    this.#awaited++; // the request keeps this process alive, as what was held did
    this.#holds.leave(hold);
    this.#awaited--;
    if (hold.problem) { // the sidecar may be what is broken: it reads this when it is well again
      if (!this.error) {
        this.#send('release', { lockId: hold.id });
      }
      this.#ref();
      throw hold.problem.again();
    }
    return this.#ask('release', { lockId: hold.id }, { about: hold });
  }

  /** Releases what is done once, and says how it ended. */
  async conclude(hold, outcome, note, held) {
    await this.#ask('release', { lockId: hold.id, outcome, note }, { about: hold });
    if (held) {
      this.#holds.leave(hold);
    }
  }

  async change(hold, kind, fields) {
    await this.#ask(kind, { lockId: hold.id, ...fields }, { about: hold, ...fields });
  }

  /** Takes a hold off the session. A handle that comes when nobody waits for it any more is released. */
  async detach(hold, ttl) {
    const body = { lockId: hold.id, ttl: formatDuration(ttl) };
    return (await this.#ask('detach', body, { about: hold, detaches: true })).detached;
  }

  /** Marks a hold as lost where its end is over. */
  expire(hold) {
    this.#holds.expire(hold);
  }

  /** Ends the session; returns when the sidecar has released its locks. */
  async close() {
    if (!this.#end(new SidecarError('SESSION_CLOSED', 'this process has closed the session'), 'SESSION_CLOSED')) {
      return;
    }
    this.#lines.ref().end();
    let late = false;
    const limit = setTimeout(() => {
      late = true;
      this.#lines.destroy(); // this too ends it
    }, ANSWER_LIMIT);
    await this.#ended;
    clearTimeout(limit);
    if (late) {
      throw this.#silent();
    }
  }

  /** Nobody asks for anything more: it ends when nothing is held, and nobody waits for an answer. */
  retire() {
    this.#retired = true;
    setImmediate(() => this.#endIdle()).unref();
  }

  #endIdle() {
    if (this.#awaited === 0 && this.#holds.size === 0
      && this.#end(new SidecarError('SESSION_CLOSED', 'nobody has the client any more'), 'SESSION_CLOSED')) {
      this.#lines.end();
    }
  }

  /** Whether what is held keeps this process alive. */
  holdsRef(holdsRef) {
    this.#holdsRef = holdsRef;
    this.#ref();
  }

  // Requests.

  #send(kind, body, call = {}) {
    const id = this.#lastId + 1;
    const line = `{"requestId":"${id}","${kind}":${JSON.stringify(body)}}\n`;
    if (3 * line.length > LONGEST_LINE && Buffer.byteLength(line) > LONGEST_LINE) {
      throw new SidecarError('INVALID_REQUEST', `the request is longer than ${LONGEST_LINE} bytes`, { metadata: { field: kind } });
    }
    this.#lastId = id; // as many as were written
    call.id = id;
    call.sent = early();
    call.done = false;
    this.#calls.set(id, call);
    this.#lines.write(line, this.#wrote);
    return call;
  }

  /** Whether the sidecar cannot have read it. */
  #isUnsent(call) {
    return call.id === undefined || this.#failed <= call.id;
  }

  /** Sends one that is on its way for Acquires. What it may wait is counted from its call. */
  #sendAcquire(call) {
    const { body, wait, deadline } = call.ask;
    const left = wait === undefined ? {} : { wait: formatDuration(wait === 0 ? 0 : Math.max(deadline - early(), 1e-3)) }; // 0 is a try
    try {
      this.#send('acquire', { owner: `acquire ${this.#lastId + 1}`, ...body, ...left }, call);
    } catch (error) {
      this.#acquires.answered(call);
      this.#finish(call, { error });
    }
  }

  #sendQueued() {
    for (let call = this.#acquires.next(); call; call = this.#acquires.next()) {
      this.#sendAcquire(call);
    }
  }

  /** Ends a wait that is over while it queues here. */
  #boundWait(call) {
    if (call.ask.wait > 0 && !call.due) {
      const resource = call.ask.what;
      call.due = after(call.ask.deadline - early(), () => {
        if (this.#acquires.isQueued(call)) {
          const message = `the wait for "${resource}" is over: more of this process wait than the sidecar takes at a time`;
          this.#giveUp(call, new SidecarError('WAIT_TIMEOUT', message, { metadata: { resource } }));
        }
      });
    }
  }

  /** Sends what is answered at once. */
  async #ask(kind, body, more) {
    if (this.error) {
      throw this.error.again();
    }
    const call = this.#send(kind, body, more);
    this.#limits.set(call, ANSWER_LIMIT);
    return unwrap(await this.#answer(call));
  }

  /** A promise of the answer, be it an error. */
  #answer(call) {
    return new Promise((resolve) => {
      if (call.done) {
        resolve(call.answer);
        return;
      }
      call.settle = resolve;
      this.#awaited++;
      this.#ref();
    });
  }

  #finish(call, answer) {
    if (!call.done) {
      call.done = true;
      call.answer = answer;
      if (call.settle) {
        call.settle(answer);
        this.#awaited--;
        this.#ref();
      }
    }
  }

  /** It is not answered in time. */
  #late(call) {
    if (call.ask) {
      this.#giveUp(call, this.#acquires.isQueued(call) ? this.#full() : this.#silent());
      return;
    }
    if (call.detaches) {
      this.#loseUnknown(call.about, 'nobody waited for it to be detached');
    }
    this.#finish(call, { error: this.#silent() });
  }

  /** Makes sure that nobody keeps what nobody waits for. */
  #giveUp(call, error) {
    if (call.done) {
      return;
    }
    this.#finish(call, { error });
    if (!this.#acquires.drop(call)) {
      call.abandoned = true; // a grant that crosses the cancel is released; what was attached is detached again by the cancel
      this.#send('cancel', { requestId: `${call.id}` });
    }
  }

  #silent() {
    return new SidecarError('SIDECAR_SILENT', `the sidecar at ${this.#path} did not answer in time; it may be frozen`);
  }

  /** A try that has queued here for as long as the sidecar may take to answer one. */
  #full() {
    const message = 'more of this process wait than the sidecar takes at a time, and none of them was answered';
    return new SidecarError('LIMIT_EXCEEDED', message, { metadata: { limit: 'waiters', max: `${this.#acquires.most}` } });
  }

  /** Ends the waits that have no end of their own when the sidecar is frozen. */
  #listen() {
    if (this.#listens) {
      return;
    }
    this.#listens = true;
    this.#heard = true;
    let pinged = false;
    const look = () => {
      const waiting = [...this.#calls.values(), ...this.#acquires.queued].filter((call) => call.ask && !call.done);
      if (waiting.length === 0 || this.error) {
        this.#listens = false;
        return;
      }
      if (this.#heard) {
        pinged = false;
      } else if (!pinged) {
        this.#send('keepAlive', {});
        pinged = true;
      } else {
        this.#listens = false;
        waiting.forEach((call) => this.#giveUp(call, this.#silent()));
        return;
      }
      this.#heard = false;
      after(PING_AFTER, look);
    };
    after(PING_AFTER, look);
  }

  #ref() {
    if (this.#retired) {
      this.retire(); // if what is done now is not a request
    }
    const refs = this.#awaited > 0 || (this.#holdsRef && this.#holds.size > 0);
    if (refs !== this.#refs) {
      this.#refs = refs;
      this.#lines[refs ? 'ref' : 'unref']();
    }
  }

  // What the sidecar says.

  #line(m) {
    if (this.error) {
      return;
    }
    this.#heard = true;
    if (!m.requestId) {
      if (m.event) {
        this.#event(m.event);
      } else if (m.error) { // its last word
        this.#over(fromStatus(m.error));
      }
      return;
    }
    const call = this.#calls.get(Number(m.requestId));
    if (!call) {
      return;
    }
    this.#calls.delete(call.id);
    if (call.ask) {
      this.#acquires.answered(call);
    }
    if (m.error) {
      const err = fromStatus(m.error);
      if (this.#isTooMany(call, err)) {
        this.#acquires.refused(call, Number(err.metadata.max));
        this.#boundWait(call);
        return; // one that is answered makes room
      }
      this.#finish(call, { error: this.#refused(call, err) });
    } else {
      this.#finish(call, this.#answered(call, m));
    }
    if (call.ask) {
      if (this.#acquires.size === 0) {
        this.#holds.forgetEarly();
      }
      this.#sendQueued();
    }
  }

  /** Whether the sidecar takes fewer acquires at a time than are on their way. */
  #isTooMany(call, { reason, metadata }) {
    return call.ask && !call.done && reason === 'LIMIT_EXCEEDED' && this.#acquires.size > 0
      && (metadata.limit === 'waiters' || metadata.limit === 'requests in flight');
  }

  #answered(call, { opened, granted, downgraded, extended, detached }) {
    if (opened) {
      this.id = opened.sessionId;
      this.#holds.opened(call, opened);
    } else if (granted) {
      return { lock: this.#granted(call, granted) };
    } else if (detached) {
      return { detached: this.#detached(call, detached) };
    } else if (downgraded ?? extended) {
      const grant = downgraded ?? extended;
      this.#holds.answered(call, grant);
      call.about.mode = grant.mode;
      if (extended) {
        this.#holds.extended(call, extended);
      }
    }
    return {};
  }

  #granted(call, grant) {
    if (call.abandoned) {
      this.#holds.answered(call, grant);
      if (call.ask.body.handle === undefined) {
        this.#send('release', { lockId: grant.lockId });
      }
      return undefined;
    }
    return new Lock(this, this.#holds.granted(call, grant));
  }

  #detached(call, detached) {
    call.about.detached = true;
    this.#holds.leave(call.about);
    if (call.done) {
      this.#send('releaseHandle', { handle: detached.handle });
      return undefined;
    }
    return new Detached(detached, call.sent);
  }

  #loseUnknown(hold, message) {
    this.#holds.lose(hold, { reason: 'UNKNOWN', message });
  }

  /** What a refusal says about a hold; the error to throw. */
  #refused({ about, detaches }, err) {
    if (about && err.reason === 'LOCK_LOST') { // sooner than its event
      this.#holds.lose(about, { reason: err.metadata.lost_reason ?? 'UNKNOWN', message: err.message });
    } else if (about && err.reason === 'NOT_HOLDER' && about.count > 0) {
      this.#loseUnknown(about, err.message);
    } else if (detaches && err.reason === 'STORE_UNAVAILABLE') {
      this.#loseUnknown(about, 'the store did not answer when it was to be detached');
      return err;
    }
    return about?.problem ?? err;
  }

  #event({ lease, lost, draining }) {
    if (lease) {
      this.#holds.lease(lease);
      this.jeopardy = lease.jeopardy === true;
    } else if (lost) {
      this.#holds.lost(lost);
    } else if (draining && !this.draining) {
      this.draining = true;
      const remaining = Math.max(0, this.#holds.until(draining.countedAt, draining.remaining) - now());
      if (this.#onDraining) {
        queueMicrotask(() => this.#onDraining(remaining)); // the app's own errors are its own
      }
    }
  }

  // Ends.

  /** The end of the session that nobody asked for. */
  #over(err) {
    this.#end(err, 'SIDECAR_GONE');
    this.#lines.destroy();
  }

  /** Ends the session once: later reasons do not count. */
  #end(err, lostReason) {
    if (this.error) {
      return false;
    }
    this.error = err;
    clearInterval(this.#keepsAlive);
    this.#limits.end();
    const [calls, { queued }] = [[...this.#calls.values()], this.#acquires];
    this.#calls.clear();
    this.#holds.end({ reason: lostReason, message: err.message });
    queued.forEach((call) => { call.id = undefined; }); // also of one that the sidecar had refused
    [...calls, ...queued].forEach((call) => this.#finish(call, { error: call.about?.problem ?? err }));
    return true;
  }
}

/** Called by an async function, so that the stack leads to who called that. */
function unwrap(answer) {
  if ('error' in answer) { // an app may abort with any reason, such as null
    const { error } = answer;
    throw error instanceof SidecarError ? error.again() : error;
  }
  return answer;
}

module.exports = { ANSWER_LIMIT, Session };
