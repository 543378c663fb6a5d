// Runs examples/contract/*.json; its README.md says what the fields mean.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockSidecar } from '../index.js';
import { now } from '../lib/clock.cjs';
import { PATIENCE, Sidecar, eventually, stores } from './sidecars.js';

const folder = new URL('../../contract/', import.meta.url);

class Run {
  sidecars = {};
  clients = {};
  holds = {};
  calls = {};
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
    for (const [name, sidecar] of Object.entries(spec.clients)) {
      this.clients[name] = new LockSidecar({ socket: this.sidecars[sidecar].socket, name });
      this.t.after(() => this.clients[name].close());
      await this.clients[name].open();
    }
    for (const [i, step] of spec.steps.entries()) {
      try {
        await this[step.do](step);
      } catch (err) {
        err.message = `step ${i + 1} ${JSON.stringify(step)}: ${err.message}`;
        throw err;
      }
    }
    await Promise.all(this.forcing);
  }

  async acquire(step) {
    const { client, resource, mode, wait, owner, reentrant, maxHold } = step;
    const controller = new AbortController();
    const asked = this.clients[client].acquire(resource, {
      shared: mode === 'SHARED', wait, owner, reentrant, maxHold, signal: controller.signal,
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

  async release({ hold, count, error, metadata }) {
    await this.#refused(this.holds[hold].release(), error, metadata);
    if (count !== undefined) {
      assert.equal(this.holds[hold].count, count);
    }
  }

  async downgrade({ hold, error, metadata }) {
    await this.#refused(this.holds[hold].downgrade(), error, metadata);
  }

  look({ hold, lost, validFor, mode, guard }) {
    const lock = this.holds[hold];
    if (lost !== undefined) {
      assert.equal(lock.lost, lost);
    }
    if (validFor) {
      const left = lock.validFor();
      assert.ok(validFor[0] <= left && left <= validFor[1], `valid for ${left} ms`);
    }
    if (mode) {
      assert.equal(lock.shared, mode === 'SHARED');
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

  freeze({ sidecar }) { this.sidecars[sidecar].freeze(); }

  thaw({ sidecar }) { this.sidecars[sidecar].thaw(); }

  kill({ sidecar }) { return this.sidecars[sidecar].kill(); }

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

  pause({ time }) { return sleep(time); }

  /** Takes what an acquire gives, and looks whether that is what it must be. */
  async #granted(asked, { hold, count, error, metadata }) {
    const lock = await this.#refused(asked, error, metadata);
    if (count !== undefined) {
      assert.equal(lock.count, count);
    }
    if (hold) {
      this.holds[hold] = lock;
      lock.signal.addEventListener('abort', () => { this.noted[`lost:${hold}`] = now(); });
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
