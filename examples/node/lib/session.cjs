'use strict';

const { SidecarClock, early, formatDuration, now, parseDuration } = require('./clock.cjs');
const { Detached } = require('./detached.cjs');
const { SidecarError, fromStatus } = require('./errors.cjs');
const { Hold } = require('./hold.cjs');
const { connect } = require('./lines.cjs');
const { Lock } = require('./lock.cjs');
const { onAbort } = require('./signals.cjs');

/** How long the sidecar may take for what it answers at once, and beyond a wait. */
const ANSWER_LIMIT = 5_000;
// After so long without a word a wait without end asks whether the sidecar is there, and
// after so long without an answer it takes it for frozen.
const PING_AFTER = 5_000;
// Node's timers stand still while the machine is suspended; the clock of a hold does not.
const MAX_LOOK = 1_000;
// How long the sidecar may take at most to say that a maxHold is over.
const MAX_SLACK = 250;
// The sidecar ends a connection at a longer line, and with it all that the session holds.
const LONGEST_LINE = 65_536;
const MAX_TIMER = 2 ** 31 - 1;

/**
 * Calls back after a time, and after what came meanwhile: where this process was busy,
 * news lie unread in the socket, and are read before a setImmediate.
 */
function after(ms, then) {
  return setTimeout(() => setImmediate(then), Math.min(ms, MAX_TIMER)).unref();
}

/**
 * One app session: a connection with lines of JSON. When it ends, at either end, every
 * lock of the session is lost.
 *
 * What an answer says is carried out when its line is read, in the order of the lines.
 * Errors are thrown by async functions, so that their stacks lead to who called.
 */
class Session {
  id = '';
  slack = 0; // see Hold.silentAt
  jeopardy = false;
  draining = false;
  error = undefined; // why the session has ended

  #path;
  #onDraining;
  #lines;
  #ended; // promise: the connection has
  #calls = new Map(); // by request id: not answered yet
  #holds = new Map(); // by lock id
  #clock = new SidecarClock();
  #news = { counted: -Infinity, until: -Infinity }; // of the lease: on the sidecar's clock, on ours
  #asking = 0; // acquires that were not answered
  #early = new Map(); // losses that came before their grants; only while asking
  #lastId = 0;
  #timer;
  #looksAt = Infinity;
  #keepsAlive; // timer of a session with a ttl
  #listens = false; // for a sidecar that is silent
  #heard = false; // since the last look
  #awaited = 0; // calls that somebody waits for
  #refs = true; // whether the connection keeps this process alive
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
  async acquire(body, signal) {
    if (this.error) {
      throw this.error.again();
    }
    signal?.throwIfAborted(); // while the session was opened
    const call = this.#send('acquire', { owner: `acquire ${this.#lastId + 1}`, ...body }, { acquires: true, maxHold: body.maxHold });
    const off = onAbort(signal, () => this.#giveUp(call, signal.reason));
    let limit;
    if (body.wait === undefined) {
      this.#listen();
    } else {
      limit = after(parseDuration(body.wait) + ANSWER_LIMIT, () => this.#giveUp(call, this.#silent()));
    }
    try {
      return (await this.#answer(call)).lock;
    } catch (err) {
      if (call.unsent && err?.reason === 'SIDECAR_GONE') {
        return undefined;
      }
      throw err;
    } finally {
      clearTimeout(limit);
      off();
    }
  }

  /** The sidecar carries it out in any case, be it late, as long as the session lasts. */
  async release(hold) {
    this.expire(hold, hold.silentAt());
    this.#leave(hold);
    if (hold.problem) { // the sidecar may be what is broken: it reads this when it is well again
      if (!this.error) {
        this.#send('release', { lockId: hold.id });
      }
      throw hold.problem.again();
    }
    await this.#ask('release', { lockId: hold.id }, { about: hold });
  }

  /** Releases what is done once, and says how it ended. */
  async conclude(hold, outcome, note, held) {
    await this.#ask('release', { lockId: hold.id, outcome, note }, { about: hold });
    if (held) {
      this.#leave(hold);
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
  expire(hold, end = hold.end()) {
    if (!hold.problem && this.#holds.has(hold.id) && end <= now()) {
      this.#holds.delete(hold.id);
      hold.expire();
      this.#ref();
    }
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

  /** Whether what is held keeps this process alive. */
  holdsRef(holdsRef) {
    this.#holdsRef = holdsRef;
    this.#ref();
  }

  // Requests.

  #send(kind, body, more = {}) {
    const call = { id: `${++this.#lastId}`, sent: early(), done: false, ...more };
    const line = `${JSON.stringify({ requestId: call.id, [kind]: body })}\n`;
    if (Buffer.byteLength(line) > LONGEST_LINE) {
      throw new SidecarError('INVALID_REQUEST', `the request is longer than ${LONGEST_LINE} bytes`, { metadata: { field: kind } });
    }
    this.#calls.set(call.id, call);
    if (call.acquires) {
      this.#asking++;
    }
    this.#lines.write(line, (err) => { call.unsent = Boolean(err); });
    return call;
  }

  /** Sends what is answered at once. */
  async #ask(kind, body, more) {
    if (this.error) {
      throw this.error.again();
    }
    const call = this.#send(kind, body, more);
    const limit = after(ANSWER_LIMIT, () => this.#late(call));
    try {
      return await this.#answer(call);
    } finally {
      clearTimeout(limit);
    }
  }

  async #answer(call) {
    this.#awaited++;
    this.#ref();
    const answer = await new Promise((resolve) => {
      call.settle = resolve;
      if (call.done) {
        resolve(call.answer);
      }
    });
    this.#awaited--;
    this.#ref();
    if ('error' in answer) { // an app may abort with any reason, such as null
      const { error } = answer;
      throw error instanceof SidecarError ? error.again() : error;
    }
    return answer;
  }

  #finish(call, answer) {
    if (!call.done) {
      call.done = true;
      call.answer = answer;
      call.settle?.(answer);
    }
  }

  #late(call) {
    if (call.detaches && !call.done) {
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
    if (!this.error) {
      call.abandoned = true; // a grant that crosses the cancel is released
      this.#send('cancel', { requestId: call.id });
    }
  }

  #silent() {
    return new SidecarError('SIDECAR_SILENT', `the sidecar at ${this.#path} did not answer in time; it may be frozen`);
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
      const waiting = [...this.#calls.values()].filter((call) => call.acquires && !call.done);
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
    const call = this.#calls.get(m.requestId);
    if (!call) {
      return;
    }
    this.#calls.delete(call.id);
    if (m.error) {
      this.#finish(call, { error: this.#refused(call, fromStatus(m.error)) });
    } else {
      this.#finish(call, this.#answered(call, m));
    }
    if (call.acquires && --this.#asking === 0) {
      this.#early.clear();
    }
  }

  #answered(call, { opened, granted, downgraded, extended, detached }) {
    if (opened) {
      this.id = opened.sessionId;
      this.#clock.answered(call.sent, opened.countedAt);
      this.slack = Math.min(MAX_SLACK, parseDuration(opened.leaseMargin) / 2);
    } else if (granted) {
      return { lock: this.#granted(call, granted) };
    } else if (detached) {
      return { detached: this.#detached(call, detached) };
    } else if (downgraded ?? extended) {
      const { mode, countedAt, validFor } = downgraded ?? extended;
      this.#clock.answered(call.sent, countedAt);
      call.about.mode = mode;
      if (extended) {
        call.about.limit = this.#limit(call, extended);
        call.about.until = Math.max(call.about.until, this.#clock.until(countedAt, parseDuration(validFor)));
        this.#watch(call.about.silentAt());
      }
    }
    return {};
  }

  #granted(call, grant) {
    this.#clock.answered(call.sent, grant.countedAt);
    if (call.abandoned) {
      this.#send('release', { lockId: grant.lockId });
      return undefined;
    }
    let hold = this.#holds.get(grant.lockId);
    if (!hold) {
      hold = new Hold(this, grant);
      this.#holds.set(hold.id, hold);
    }
    hold.count++;
    hold.mode = grant.mode;
    hold.until = Math.max(hold.until, this.#clock.until(grant.countedAt, parseDuration(grant.validFor)));
    hold.limit = Math.min(hold.limit, this.#limit(call, grant));
    hold.prolong(this.#news); // they may overtake the grant
    const early = this.#early.get(hold.id);
    if (early) {
      this.#lost(hold, early);
    } else {
      this.#watch(hold.silentAt());
    }
    return new Lock(this, hold);
  }

  /** When a hold ends by what was asked for, or by its handle where it is attached. */
  #limit({ maxHold }, { countedAt, endsIn }) {
    const lefts = [maxHold, endsIn].filter((left) => left !== undefined && left !== null);
    return Math.min(...lefts.map((left) => this.#clock.until(countedAt, parseDuration(left))));
  }

  #detached(call, detached) {
    call.about.detached = true;
    this.#leave(call.about);
    if (call.done) {
      this.#send('releaseHandle', { handle: detached.handle });
      return undefined;
    }
    return new Detached(detached, call.sent);
  }

  #loseUnknown(hold, message) {
    this.#holds.delete(hold.id);
    hold.lose('UNKNOWN', message);
    this.#ref();
  }

  /** What a refusal says about a hold; the error to throw. */
  #refused({ about, detaches }, err) {
    if (about && err.reason === 'LOCK_LOST') { // sooner than its event
      this.#holds.delete(about.id);
      about.lose(err.metadata.lost_reason ?? 'UNKNOWN', err.message);
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
      const until = this.#clock.until(lease.countedAt, parseDuration(lease.validFor));
      this.#news = { counted: parseDuration(lease.countedAt), until };
      this.#holds.forEach((hold) => hold.prolong(this.#news));
      this.jeopardy = lease.jeopardy === true;
    } else if (lost) {
      const hold = this.#holds.get(lost.lockId);
      if (hold) {
        this.#lost(hold, lost);
      } else if (this.#asking > 0) {
        this.#early.set(lost.lockId, lost);
      }
    } else if (draining && !this.draining) {
      this.draining = true;
      const remaining = Math.max(0, this.#clock.until(draining.countedAt, parseDuration(draining.remaining)) - now());
      if (this.#onDraining) {
        queueMicrotask(() => this.#onDraining(remaining)); // the app's own errors are its own
      }
    }
  }

  #lost(hold, { reason, message, grace, countedAt }) {
    this.#holds.delete(hold.id);
    hold.lose(reason, message, this.#clock.until(countedAt, parseDuration(grace)));
    this.#ref();
  }

  #leave(hold) {
    hold.count = Math.max(0, hold.count - 1);
    if (hold.count === 0) {
      this.#holds.delete(hold.id);
      this.#ref();
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
    this.#holds.forEach((hold) => this.expire(hold, hold.silentAt()));
    if (this.#holds.size > 0) {
      this.#watch(Math.min(...[...this.#holds.values()].map((hold) => hold.silentAt())));
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
    clearTimeout(this.#timer);
    clearInterval(this.#keepsAlive);
    this.#looksAt = -Infinity; // no look any more
    const [holds, calls] = [[...this.#holds.values()], [...this.#calls.values()]];
    this.#holds.clear();
    this.#calls.clear();
    this.#early.clear();
    holds.forEach((hold) => hold.lose(lostReason, err.message));
    calls.forEach((call) => this.#finish(call, { error: call.about?.problem ?? err }));
    return true;
  }
}

module.exports = { ANSWER_LIMIT, Session };
