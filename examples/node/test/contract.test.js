// Runs examples/contract/*.json; its README.md says what the fields mean.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockSidecar } from '../index.js';
import { now } from '../lib/clock.cjs';
import { Relay } from './relay.js';
import { PATIENCE, Sidecar, eventually, stores } from './sidecars.js';

const folder = new URL('../../contract/', import.meta.url);

const ofACase = new Set(['about', 'store', 'needs', 'sidecars', 'relays', 'clients', 'metadata', 'steps']);
const ofAStep = new Set([
  'do', 'error', 'metadata', 'within', 'time', 'client', 'sidecar', 'relay', 'lines',
  'resource', 'resources', 'mode', 'wait', 'owner', 'reentrant', 'maxHold', 'minHold', 'limit', 'once', 'unwatched', 'detachable', 'ttl', 'handle',
  'hold', 'call', 'count', 'outcome', 'note', 'lost', 'validFor', 'guard', 'parts', 'slot', 'attempt', 'previous',
  'holds', 'are', 'reason', 'first', 'then', 'grace', 'holders', 'waiters', 'owners',
  'value', 'candidates', 'interval', 'watch',
]);

function onlyKnown(fields, known) {
  Object.keys(fields).forEach((field) => assert.ok(known.has(field), `nobody knows "${field}"`));
}

class Run {
  sidecars = {};
  relays = {};
  clients = {};
  holds = {};
  calls = {};
  handles = {};
  watches = {};
  noted = {}; // moments, for order
  forcing = [];

  constructor(t) {
    this.t = t;
  }

  async all(spec, store) {
    const namespace = randomUUID();
    await Promise.all(Object.entries(spec.sidecars).map(async ([name, flags]) => {
      const more = Object.entries(flags).flatMap(([flag, value]) => [`--${flag}`, value]);
      this.sidecars[name] = await Sidecar.start(this.t, { store, namespace, more: ['--name', name, ...more] });
    }));
    for (const [name, { to, without }] of Object.entries(spec.relays ?? {})) {
      this.relays[name] = await Relay.start(this.t, this.sidecars[to], { without });
    }
    for (const [name, at] of Object.entries(spec.clients)) {
      this.clients[name] = new LockSidecar({ socket: (this.relays[at] ?? this.sidecars[at]).socket, name, metadata: spec.metadata?.[name] });
      this.t.after(() => this.clients[name].close());
      await this.clients[name].open();
    }
    for (const [i, step] of spec.steps.entries()) {
      try {
        onlyKnown(step, ofAStep);
        await this[step.do](step);
      } catch (err) {
        err.message = `step ${i + 1} ${JSON.stringify(step)}: ${err.message}`;
        throw err;
      }
    }
    await Promise.all(this.forcing);
  }

  async acquire(step) {
    const { client, resource, resources, mode, wait, owner, reentrant, maxHold, minHold, limit, once, detachable } = step;
    const controller = new AbortController();
    const asked = this.clients[client].acquire(resource ?? resources, {
      shared: mode === 'SHARED', wait, owner, reentrant, maxHold, minHold, limit, once, detachable, signal: controller.signal,
    });
    if (!step.call) {
      await this.#granted(asked, step);
      return;
    }
    const call = { asked, controller, answered: false };
    this.calls[step.call] = call;
    const note = () => {
      call.answered = true;
      this.noted[`got:${step.call}`] = now();
    };
    asked.then(note, note);
  }

  async pending({ call, time }) {
    await sleep(time);
    assert.equal(this.calls[call].answered, false, 'it was answered');
  }

  cancel({ call }) {
    this.calls[call].controller.abort();
  }

  async answer(step) {
    const { asked, controller } = this.calls[step.call];
    await within(step.within, this.#granted(asked.catch((err) => {
      throw err === controller.signal.reason ? Object.assign(new Error(), { reason: 'CANCELLED' }) : err;
    }), step));
  }

  async release({ hold, count, outcome, note, error, metadata }) {
    const lock = this.holds[hold];
    const release = { undefined: () => lock.release(), SUCCEEDED: () => lock.succeeded(note), FAILED: () => lock.failed(note) }[outcome];
    await this.#refused(release(), error, metadata);
    if (count !== undefined) {
      assert.equal(lock.count, count);
    }
  }

  async dispose({ hold, error, metadata }) {
    await this.#refused(this.holds[hold][Symbol.asyncDispose](), error, metadata);
  }

  drop({ hold }) {
    delete this.holds[hold];
    globalThis.gc?.();
  }

  async downgrade({ hold, error, metadata }) {
    await this.#refused(this.holds[hold].downgrade(), error, metadata);
  }

  async extend({ hold, maxHold, error, metadata }) {
    await this.#refused(this.holds[hold].extend(maxHold), error, metadata);
  }

  async detach({ hold, ttl, handle, error, metadata }) {
    const lock = this.holds[hold];
    const detached = await this.#refused(lock.detach(ttl), error, metadata);
    if (detached) {
      this.#detachedAs(detached, lock, ttl);
      this.handles[handle] = detached;
    }
  }

  #detachedAs(detached, { resource, shared, fence }, ttl) {
    assert.deepEqual([detached.resource, detached.shared, detached.fence], [resource, shared, fence]);
    const left = detached.validFor();
    assert.ok(left > 0 && left <= ttl, `${left} ms`);
  }

  async attach(step) {
    await this.#granted(this.clients[step.client].attach(this.handles[step.handle]), step);
  }

  async extendHandle({ client, handle, ttl, error, metadata }) {
    const before = this.handles[handle];
    const after = await this.#refused(this.clients[client].extendDetached(before, ttl), error, metadata);
    if (after) {
      assert.equal(after.handle, before.handle);
      this.#detachedAs(after, before, ttl);
    }
  }

  async releaseHandle({ client, handle, error, metadata }) {
    await this.#refused(this.clients[client].releaseDetached(this.handles[handle]), error, metadata);
  }

  same({ holds }) {
    const fences = holds.map((h) => this.holds[h].fence);
    assert.equal(new Set(fences).size, 1, `${fences}`);
  }

  async check({ hold, error, metadata, within: limit }) {
    const check = async () => this.holds[hold].check();
    if (limit) {
      await within(limit, eventually(`it fails with ${error}`, () => check().then(() => false, () => true)));
    }
    await this.#refused(check(), error, metadata);
  }

  look({ hold, lost, validFor, mode, guard, parts, slot, attempt, previous }) {
    const lock = this.holds[hold];
    if (lost !== undefined) {
      assert.equal(lock.lost, lost);
    }
    if (validFor) {
      const left = lock.validFor();
      assert.ok(validFor[0] <= left && left <= validFor[1], `valid for ${left} ms`);
    }
    if (mode) {
      assert.equal(lock.shared ? 'SHARED' : lock.slot === undefined ? 'EXCLUSIVE' : 'PERMIT', mode);
    }
    if (parts) {
      assert.deepEqual(lock.parts.map((part) => part.resource), parts);
      assert.ok(lock.parts.every((part) => part.fence > 0n));
    }
    if (slot !== undefined) {
      assert.equal(lock.slot ?? null, slot);
    }
    if (attempt !== undefined) {
      assert.equal(lock.attempt ?? 0, attempt);
    }
    if (previous !== undefined) {
      const { state, attempt: number, note } = lock.previous ?? {};
      assert.deepEqual(lock.previous ? { state, attempt: number, note } : null, previous);
    }
    if (guard) {
      assert.ok(lock.guard.dialect && lock.guard.sql && lock.guard.args.length > 0);
    }
  }

  async lost({ hold, reason, within: limit }) {
    const { signal } = this.holds[hold];
    await within(limit, signal.aborted || new Promise((resolve) => { signal.addEventListener('abort', resolve); }));
    assert.equal(signal.reason.lostReason, reason);
    assert.equal(this.holds[hold].validFor(), 0);
  }

  slots({ holds, are }) {
    assert.deepEqual(holds.map((h) => this.holds[h].slot).sort((a, b) => a - b), are);
  }

  rising({ holds }) {
    const fences = holds.map((h) => this.holds[h].fence);
    assert.ok(fences.every((f, i) => i === 0 || f > fences[i - 1]), `${fences}`);
  }

  order({ first, then }) {
    assert.ok(this.noted[first] < this.noted[then], `${this.noted[first]}, ${this.noted[then]}`);
  }

  close({ client }) {
    return this.clients[client].close();
  }

  open({ client, error, metadata }) {
    return this.#refused(this.clients[client].open(), error, metadata);
  }

  async draining({ client, within: limit }) {
    await within(limit, eventually('it is told', () => this.clients[client].draining));
  }

  /** Nothing of this process runs meanwhile, nor between the end of it and the next step. */
  stop({ time }) {
    const { pid } = process;
    assert.equal(spawnSync('sh', ['-c', `kill -STOP ${pid}; sleep ${time / 1000}; kill -CONT ${pid}`]).status, 0);
  }

  freeze({ sidecar }) { this.sidecars[sidecar].freeze(); }

  thaw({ sidecar }) { this.sidecars[sidecar].thaw(); }

  kill({ sidecar }) { return this.sidecars[sidecar].kill(); }

  terminate({ sidecar }) { this.sidecars[sidecar].terminate(); }

  async ended({ sidecar, within: limit }) { await within(limit, this.sidecars[sidecar].ended()); }

  async withheld({ relay, lines, within: limit }) {
    await within(limit, eventually('it is withheld', () => this.relays[relay].withheld >= lines));
  }

  start({ sidecar }) { return this.sidecars[sidecar].run(); }

  force({ sidecar, resource, grace }) {
    this.forcing.push(this.sidecars[sidecar].force(resource, `${grace / 1000}s`));
  }

  async queue({ sidecar, resource, holders, waiters, owners, within: limit }) {
    let lock;
    await within(limit, eventually('the queue', async () => {
      lock = await this.sidecars[sidecar].lock(resource);
      return lock.holders.length === holders && lock.waiters.length === waiters;
    }));
    if (owners) {
      const told = lock.holders.map((h) => h.owner);
      assert.ok(owners.every((want, i) => (want === '*' ? told[i] : told[i] === want)), `${told}`);
    }
  }

  async leader(step) {
    const { client, resource, within: limit = 0 } = step;
    for (const end = Date.now() + limit; ; await sleep(5)) {
      const leader = await this.clients[client].leader(resource);
      if (this.#leads(step, leader)) {
        return;
      }
      assert.ok(Date.now() < end, JSON.stringify(leader));
    }
  }

  #leads({ value, hold, candidates }, leader) {
    return leader.leads === (value !== null) && leader.leads === Boolean(leader.holder) && leader.value === (value ?? '')
      && (hold === undefined || BigInt(leader.holder.fence) === this.holds[hold].fence)
      && (candidates === undefined || leader.candidates === candidates);
  }

  watchLeader({ client, resource, interval, watch }) {
    const leaders = this.clients[client].watchLeader(resource, { interval });
    this.t.after(() => leaders.return());
    const said = [];
    this.watches[watch] = said;
    const read = async () => {
      for await (const leader of leaders) {
        said.push(leader);
      }
    };
    read().catch(() => {}); // it ends with its sidecar
  }

  async told(step) {
    const said = this.watches[step.watch];
    await within(step.within, eventually('it is told', () => {
      for (let leader; (leader = said.shift());) {
        if (this.#leads(step, leader)) {
          return true;
        }
      }
      return false;
    }));
  }

  pause({ time }) { return sleep(time); }

  /** Takes what an acquire gives, and looks whether that is what it must be. */
  async #granted(asked, { hold, count, unwatched, error, metadata }) {
    const lock = await this.#refused(asked, error, metadata);
    if (count !== undefined) {
      assert.equal(lock.count, count);
    }
    if (hold) {
      this.holds[hold] = lock;
      if (!unwatched) {
        lock.signal.addEventListener('abort', () => { this.noted[`lost:${hold}`] = now(); });
      }
    }
  }

  async #refused(promise, error, metadata = []) {
    if (!error) {
      return promise;
    }
    await assert.rejects(promise, (err) => {
      assert.equal(err.reason, error, err.message);
      metadata.forEach((key) => assert.ok(err.metadata[key], `no ${key} in ${JSON.stringify(err.metadata)}`));
      return true;
    });
    return undefined;
  }
}

/** A promise that must be kept in time. */
async function within(limit = PATIENCE, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${limit} ms`)), limit);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

const runsOn = {
  any: stores.slice(0, 1),
  shared: stores.filter((s) => s.shared),
  mysql: stores.filter((s) => s.name === 'mysql'),
};

for (const file of fs.readdirSync(folder).filter((f) => f.endsWith('.json'))) {
  const spec = JSON.parse(fs.readFileSync(new URL(file, folder), 'utf8'));
  onlyKnown(spec, ofACase);
  const cannot = [['fork', 'Node.js does not fork'], ['unread', 'Node.js reads between turns of the event loop, and not when it is asked']];
  const [, skip] = cannot.find(([need]) => spec.needs?.includes(need)) ?? [];
  if (skip) {
    test(file, { skip });
    continue;
  }
  const chosen = runsOn[spec.store ?? 'any'];
  for (const store of chosen) {
    test(`${file} on ${store.name}`, { timeout: PATIENCE }, async (t) => {
      t.diagnostic(spec.about);
      await new Run(t).all(spec, store);
    });
  }
  if (chosen.length === 0) {
    test(file, { skip: `needs a store (${spec.store}) that the environment does not name` });
  }
}
