// What an app sees of the client besides the locks themselves.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import { LockLostError, LockSidecar, SidecarError } from 'locksidecar';
import { Sidecar, aborted, eventually, stores } from './sidecars.js';

async function start(t, options, clientOptions) {
  const sidecar = await Sidecar.start(t, options);
  const client = new LockSidecar({ socket: sidecar.socket, ...clientOptions });
  t.after(() => client.close());
  return { sidecar, client };
}

test('a block ends once, also where its work has released', async (t) => {
  const { client } = await start(t);
  const lock = await client.acquire('a');
  await lock.release();
  await lock[Symbol.asyncDispose](); // the end of `await using`
  assert.equal(await client.hold('a', async (held) => {
    await held.release();
    return 'done';
  }), 'done');
  const held = await client.acquire('a');
  await held[Symbol.asyncDispose]();
  await assert.rejects(held.release(), { reason: 'NOT_HOLDER' });
  await client.hold('a', { wait: 0 }, () => {});
});

test('check after the release, while somebody else holds it', async (t) => {
  const { client } = await start(t);
  const lock = await client.acquire('a');
  await lock.release();
  await client.hold('a', { wait: 0 }, () => assert.throws(() => lock.check(), { reason: 'NOT_HOLDER' }));
});

test('logs show what a lock is', async (t) => {
  const { client } = await start(t);
  const lock = await client.acquire('a');
  const { id, fence } = lock;
  assert.deepEqual(JSON.parse(JSON.stringify({ lock })), {
    lock: { id, resource: 'a', shared: false, fence: `${fence}`, released: false, lost: false },
  });
  assert.match(inspect({ lock }), /Lock \{.*resource: 'a'.*lost: false/s);
  await lock.release();
  assert.match(inspect(lock), /released: true/);
});

test('stacks lead to who called', async (t) => {
  const { sidecar, client } = await start(t);
  const lock = await client.acquire('a');
  async function theirCode(work) {
    await work();
  }
  const leads = (work, reason) => assert.rejects(theirCode(work), (err) => {
    assert.equal(err.reason, reason);
    assert.match(err.stack, /theirCode/);
    return true;
  });
  await leads(() => client.acquire('a', { wait: 0 }), 'LOCK_HELD');
  await leads(() => client.hold('a', { wait: 10 }, () => {}), 'WAIT_TIMEOUT');
  await leads(() => new LockSidecar({ socket: '/nowhere/s' }).acquire('a'), 'NO_SIDECAR');
  await leads(() => client.get(''), 'INVALID_REQUEST');
  await sidecar.force('a', '0s');
  await aborted(lock.signal);
  await leads(async () => lock.check(), 'LOCK_LOST');
  await leads(() => lock.release(), 'LOCK_LOST');
});

test('errors as JSON, and by their reason', async (t) => {
  const { sidecar, client } = await start(t);
  const lock = await client.acquire('a');
  const held = await client.acquire('a', { wait: 0 }).catch((err) => err);
  assert.ok(SidecarError.is(held, 'WAIT_TIMEOUT', 'LOCK_HELD') && !SidecarError.is(held, 'DEADLOCK') && !SidecarError.is(new Error()));
  const { name, reason, metadata } = JSON.parse(JSON.stringify(held));
  assert.deepEqual([name, reason, metadata.holder_pid], ['SidecarError', 'LOCK_HELD', `${process.pid}`]);
  await sidecar.force('a', '0s');
  const lost = JSON.parse(JSON.stringify(await aborted(lock.signal)));
  assert.deepEqual([lost.name, lost.reason, lost.lostReason, lost.fence], ['LockLostError', 'LOCK_LOST', 'FORCED', `${lock.fence}`]);
});

test('options that nobody knows, and values that make no sense', async (t) => {
  const { sidecar, client } = await start(t);
  const refused = (field, options) => assert.rejects(client.acquire('a', options), { reason: 'INVALID_REQUEST', metadata: { field } });
  for (const [field, value] of [
    ['mode', 'SHARED'], ['wait', NaN], ['wait', '5s'], ['wait', -1], ['wait', null], ['maxHold', NaN], ['maxHold', Infinity],
    ['minHold', -1], ['minHold', '30s'], ['minHold', Infinity],
    ['shared', 'yes'], ['reentrant', 1], ['owner', 7], ['limit', 1.5], ['once', 1], ['signal', {}],
  ]) {
    await refused(field, { [field]: value });
  }
  await refused('once.tries', { once: { tries: 3 } });
  await refused('owner', { owner: '\ud800' });
  await refused('owner', { owner: 'x'.repeat(70_000) });
  await refused('limit', { limit: 2, shared: true });
  await assert.rejects(client.acquire(7), { reason: 'INVALID_REQUEST', metadata: { field: 'resource' } });
  await assert.rejects(client.hold('a', {}), { reason: 'INVALID_REQUEST', metadata: { field: 'work' } });
  assert.throws(() => new LockSidecar({ sokcet: '/x' }), { reason: 'INVALID_REQUEST', metadata: { field: 'sokcet' } });
  assert.throws(() => new LockSidecar({ ttl: NaN }), { reason: 'INVALID_REQUEST', metadata: { field: 'ttl' } });
  assert.deepEqual((await sidecar.lock('a')).holders, []);
  const kept = await client.acquire('kept');
  await assert.rejects(client.acquire(Array.from({ length: 200 }, (_, i) => `${i}`.padEnd(500))), { reason: 'INVALID_REQUEST' });
  kept.check(); // a line that is too long would have ended the session
  await kept.release();
  await client.hold('a', { wait: Infinity, owner: undefined }, () => {});
});

test('many wait by one signal', async (t) => {
  const { sidecar, client } = await start(t);
  const warnings = [];
  const warned = (warning) => warnings.push(warning.name);
  process.on('warning', warned);
  t.after(() => process.off('warning', warned));
  const { signal, abort } = ((c) => ({ signal: c.signal, abort: () => c.abort() }))(new AbortController());
  const lock = await client.acquire('a', { signal });
  const waiting = Array.from({ length: 30 }, () => assert.rejects(client.acquire('a', { signal }), { name: 'AbortError' }));
  for (let i = 0; i < 30; i++) {
    lock.signal.addEventListener('abort', () => {});
  }
  await eventually('all wait', async () => (await sidecar.lock('a')).waiters.length === 30);
  abort();
  await Promise.all(waiting);
  await eventually('nobody waits', async () => (await sidecar.lock('a')).waiters.length === 0);
  await new Promise(setImmediate);
  assert.deepEqual(warnings, []);
  await lock.release();
});

test('a sidecar that drains says so', async (t) => {
  let remaining;
  const { sidecar, client } = await start(t, { more: ['--ttl', '2s', '--drain', '20s'] }, { onDraining: (ms) => { remaining = ms; } });
  const lock = await client.acquire('a');
  assert.equal(client.draining, false);
  sidecar.terminate();
  await eventually('it says so', () => remaining !== undefined);
  assert.ok(client.draining && remaining > 0 && remaining <= 20_000, `${remaining}`);
  lock.check();
  await lock.release();
});

test('require and import give the same', () => {
  const required = createRequire(import.meta.url)('locksidecar');
  assert.equal(required.LockSidecar, LockSidecar);
  assert.equal(required.LockLostError, LockLostError);
});

test('clients that nobody has any more end their sessions, and cost no lock', async (t) => {
  const sidecar = await Sidecar.start(t);
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  const used = async (name) => {
    const client = new LockSidecar({ socket: sidecar.socket });
    await client.hold(`${name} before`, () => {});
    return client.acquire(name);
  };
  const locks = await Promise.all(['a', 'b', 'c'].map(used));
  const looks = new LockSidecar({ socket: sidecar.socket }); // which needs no session
  const sessions = async (n) => eventually(`${n} sessions`, async () => {
    collect();
    return (await looks.info()).sessions === n;
  });
  await locks[0].release();
  await sessions(2);
  await new Promise((resolve) => { setTimeout(resolve, 100); });
  await sessions(2); // these hold something
  locks[1].check();
  await locks[1].release();
  await sessions(1);
  locks[2].check();
  await locks[2].release();
  await sessions(0);
  await assert.rejects(locks[2].release(), { reason: 'NOT_HOLDER' });
});

test('worker threads have sessions of their own, which end with them', async (t) => {
  const { sidecar, client } = await start(t);
  const worker = new Worker(`
    const { LockSidecar } = require('locksidecar');
    const { parentPort, workerData } = require('node:worker_threads');
    new LockSidecar({ socket: workerData }).acquire('a').then(() => parentPort.postMessage('held'));
  `, { eval: true, workerData: sidecar.socket });
  t.after(() => worker.terminate());
  await new Promise((resolve, reject) => { worker.once('message', resolve).once('error', reject); });
  await assert.rejects(client.acquire('a', { wait: 0 }), { reason: 'LOCK_HELD' });
  const next = client.acquire('a', { wait: 30_000 });
  await worker.terminate();
  await (await next).release();
});

test('looks', async (t) => {
  const { sidecar, client } = await start(t, {}, { metadata: { leader: '10.0.0.7:9000' } });
  const changes = client.watch('looks/', { interval: 100 });
  assert.equal((await changes.next()).value.kind, 'SYNCED');
  const lock = await client.acquire('looks/a');
  assert.equal((await changes.next()).value.lock.resource, 'looks/a');
  await changes.return();
  assert.equal(await client.held('looks/a'), true);
  assert.equal(await client.held('looks/b'), false);
  const all = [];
  for await (const one of client.list('looks/')) {
    all.push(one.resource);
  }
  assert.deepEqual(all, ['looks/a']);
  const { leads, value } = await client.leader('looks/a');
  assert.deepEqual([leads, value], [true, '10.0.0.7:9000']);
  const leaders = client.watchLeader('looks/a', { interval: 100 });
  assert.equal((await leaders.next()).value.value, '10.0.0.7:9000');
  assert.equal((await client.info()).holds, 1);
  assert.deepEqual(await client.force('looks/a', { grace: 0 }), [lock.id]);
  assert.equal((await leaders.next()).value.leads, false);
  await leaders.return();
  assert.equal((await aborted(lock.signal)).lostReason, 'FORCED');
  await sidecar.kill();
  await assert.rejects(client.info(), { reason: 'NO_SIDECAR' });
});

test('a watch ends while it waits for a change', async (t) => {
  const { client } = await start(t);
  for (const changes of [client.watch('quiet/', { interval: 100 }), client.watchLeader('quiet', { interval: 100 })]) {
    await changes.next(); // what is there
    const waiting = changes.next(); // and nothing changes
    assert.deepEqual(await changes.return('enough'), { value: 'enough', done: true });
    assert.deepEqual(await waiting, { value: undefined, done: true });
  }
});

test('several at once, permits, and the end of maxHold moved', async (t) => {
  const { client } = await start(t);
  await client.hold(['b', 'a'], { wait: 5_000 }, async (lock) => {
    assert.deepEqual(lock.parts.map((p) => [p.resource, typeof p.fence]), [['a', 'bigint'], ['b', 'bigint']]);
    await assert.rejects(client.acquire('b', { wait: 0 }), { reason: 'LOCK_HELD' });
  });
  const permits = await Promise.all([1, 2].map(() => client.acquire('p', { limit: 2, wait: 0 })));
  assert.deepEqual(permits.map((p) => p.slot).sort(), [0, 1]);
  await assert.rejects(client.acquire('p', { limit: 2, wait: 0 }), { reason: 'LOCK_HELD' });
  const lock = await client.acquire('c', { maxHold: 60_000 });
  await lock.extend(500);
  assert.ok(lock.validFor() <= 500);
  assert.equal((await aborted(lock.signal)).lostReason, 'MAX_HOLD');
  await assert.rejects(lock.extend(500), { reason: 'LOCK_LOST' });
});

test('done once', async (t) => {
  const { client } = await start(t, { store: stores.find((s) => s.name === 'redis') ?? stores[0] });
  const attempts = [];
  await assert.rejects(client.once('mail', { keep: 60_000 }, async (lock) => {
    attempts.push([lock.attempt, lock.previous?.state]);
    await lock.failed('no route');
    throw new TypeError('no');
  }), TypeError);
  await assert.rejects(client.once('mail', {}, (lock) => {
    attempts.push([lock.attempt, lock.previous.state, lock.previous.note]);
    throw new TypeError('no');
  }), TypeError);
  assert.equal(await client.once('mail', (lock) => {
    attempts.push([lock.attempt, lock.previous.state]);
    return 42;
  }), 42);
  assert.deepEqual(attempts, [[1, undefined], [2, 'FAILED', 'no route'], [3, 'UNKNOWN']]);
  await assert.rejects(client.once('mail', () => assert.fail()), { reason: 'ALREADY_DONE' });
  await assert.rejects(client.once('other', { maxAttempts: 1.5 }, () => {}), { reason: 'INVALID_REQUEST' });
});
