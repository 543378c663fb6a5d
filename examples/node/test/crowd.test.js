// More acquires at a time than the sidecar takes of one session.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { LockSidecar } from '../index.js';
import { Acquires } from '../lib/acquires.cjs';
import { now } from '../lib/clock.cjs';
import { scripted } from './scripted.js';
import { Sidecar, eventually } from './sidecars.js';

async function start(t, ...more) {
  const sidecar = await Sidecar.start(t, { store: { name: 'embedded', url: 'embedded:' }, more: ['--ttl', '60s', ...more] });
  const client = new LockSidecar({ socket: sidecar.socket });
  t.after(() => client.close());
  await client.open();
  return { sidecar, client };
}

/** An acquire that notes its name when it is granted, and is released then. */
function noting(order, client, resource, name, options) {
  return client.hold(resource, options ?? {}, () => { order.push(name); });
}

const numbers = (n) => Array.from({ length: n }, (_, i) => i);
const full = (max) => [{ domain: 'locksidecar', reason: 'LIMIT_EXCEEDED', metadata: { limit: 'waiters', max: `${max}` } }];

test('1,500 who wait on one session are served in their order', async (t) => {
  const { sidecar, client } = await start(t);
  const held = await client.acquire('a');
  const order = [];
  const all = numbers(1_500).map((i) => noting(order, client, 'a', i));
  await eventually('the sidecar has the first', async () => (await sidecar.lock('a')).waiters.length >= 800);
  await client.hold('b', () => {}); // nobody asks for it: it gets through
  await held.release();
  await Promise.all(all);
  assert.deepEqual(order, numbers(1_500));
});

test('a sidecar that takes fewer', async (t) => {
  const { sidecar, client } = await start(t, '--max-waiters', '3');
  const held = await client.acquire('a');
  const order = [];
  const all = numbers(20).map((i) => noting(order, client, 'a', i));
  await eventually('the sidecar has some', async () => (await sidecar.lock('a')).waiters.length === 3);
  const more = [20, 21].map((i) => noting(order, client, 'a', i));
  await held.release();
  await Promise.all([...all, ...more]);
  assert.deepEqual(order, numbers(22));
});

test('answers that a crowd finds unread, after it has stood still, are answers', async (t) => {
  const { sidecar, client } = await start(t);
  const held = await client.acquire('a');
  const all = numbers(500).map(() => client.acquire('a', { wait: 1_000 }));
  const answers = Promise.allSettled(all);
  await eventually('they wait', async () => (await sidecar.lock('a')).waiters.length === 500);
  const { pid } = process;
  spawnSync('sh', ['-c', `kill -STOP ${pid}; sleep 8; kill -CONT ${pid}`]);
  const reasons = new Set((await answers).map(({ reason }) => reason.reason));
  assert.ok(reasons.has('WAIT_TIMEOUT') && !reasons.has('SIDECAR_SILENT'), [...reasons].join());
  await held.release();
});

test('who queues in the client gives up, and leaves nothing', async (t) => {
  const { sidecar, client } = await start(t, '--max-waiters', '2');
  const held = await client.acquire('a');
  const order = [];
  const waiting = ['x', 'y'].map((name) => noting(order, client, 'a', name));
  await eventually('they wait', async () => (await sidecar.lock('a')).waiters.length === 2);
  const controller = new AbortController();
  const aborted = assert.rejects(client.acquire('a', { signal: controller.signal }), /enough/);
  const [last, began] = [noting(order, client, 'a', 'z', { wait: 60_000 }), now()];
  await assert.rejects(client.acquire('a', { wait: 300 }), { reason: 'WAIT_TIMEOUT', metadata: { resource: 'a' } });
  assert.ok(now() - began >= 290, 'its wait was over');
  controller.abort(new Error('enough'));
  await aborted;
  assert.equal((await sidecar.lock('a')).waiters.length, 2);
  await held.release();
  await Promise.all([...waiting, last]);
  assert.deepEqual(order, ['x', 'y', 'z']);
  const { holders, waiters } = await sidecar.lock('a');
  assert.deepEqual([holders, waiters], [[], []]);
});

test('a try beside those who wait', async (t) => {
  const { sidecar, client } = await start(t, '--max-waiters', '1');
  const held = await client.acquire('a');
  const order = [];
  const waiting = noting(order, client, 'a', 'waits');
  await eventually('it waits', async () => (await sidecar.lock('a')).waiters.length === 1);
  const queues = noting(order, client, 'b', 'queues');
  await assert.rejects(client.acquire('b', { wait: 0 }), { reason: 'LIMIT_EXCEEDED', metadata: { limit: 'waiters', max: '1' } });
  const tries = noting(order, client, 'b', 'tries', { wait: 0 });
  await held.release();
  await Promise.all([waiting, tries, queues]);
  assert.deepEqual(order, ['waits', 'tries', 'queues']);
});

test('close ends those who queue in the client', async (t) => {
  const { sidecar, client } = await start(t, '--max-waiters', '1');
  await client.acquire('a');
  const all = numbers(3).map(() => assert.rejects(client.acquire('a'), { reason: 'SESSION_CLOSED' }));
  await eventually('one waits', async () => (await sidecar.lock('a')).waiters.length === 1);
  await client.close();
  await Promise.all(all);
});

test('what nobody asks for any more gets through before those who came earlier', () => {
  const acquires = new Acquires();
  const ask = (what) => ({ ask: { what, wait: undefined } });
  const on = [...numbers(799).map(() => ask('busy')), ...numbers(201).map((i) => ask(`r${i}`))];
  on.forEach((call) => assert.equal(acquires.enter(call), true));
  const queue = [ask('busy'), ask('r0'), ask('free'), ask('r1')];
  queue.forEach((call) => assert.equal(acquires.enter(call), false));
  const [, , free] = queue;
  acquires.answered(on[0]);
  assert.equal(acquires.next(), free);
  acquires.answered(on[1]);
  assert.equal(acquires.next(), undefined);
  acquires.answered(on[800]); // r1
  assert.equal(acquires.next(), queue[3]);
  assert.equal(acquires.next(), undefined);
  on.slice(2, 201).forEach((call) => acquires.answered(call));
  assert.deepEqual([acquires.size, acquires.next()], [800, undefined]);
  acquires.answered(on[201]);
  assert.deepEqual([acquires.next(), acquires.next()], [queue[0], undefined]);
});

test('what had to queue because there was no room gets through as soon as there is some', () => {
  const acquires = new Acquires();
  const ask = (what) => ({ ask: { what, wait: undefined } });
  const on = numbers(800).map(() => ask('busy'));
  on.forEach((call) => assert.equal(acquires.enter(call), true));
  assert.equal(acquires.enter(ask('busy')), false);
  assert.equal(acquires.next(), undefined); // looked through in vain
  numbers(200).forEach((i) => assert.equal(acquires.enter(ask(`r${i}`)), true));
  const free = ask('free');
  assert.equal(acquires.enter(free), false);
  acquires.answered(on[0]);
  assert.equal(acquires.next(), free);
});

test('what was not sent when its sidecar went goes to the next session, with what is left of its wait', async (t) => {
  const { client, asked, hangUp } = await scripted(t, { countedAt: `${now() / 1e3}s` });
  await client.open();
  const acquires = () => asked.map((line) => JSON.parse(line).acquire).filter(Boolean);
  const sent = numbers(800).map(() => assert.rejects(client.acquire('r'), { reason: 'SIDECAR_GONE' }));
  const controller = new AbortController();
  const { signal } = controller;
  const queued = numbers(50).map(() => assert.rejects(client.acquire('r', { signal, wait: 600_000 }), { name: 'AbortError' }));
  const asking = now();
  await eventually('the first were sent', () => acquires().length === 800 && now() - asking > 200);
  const passed = now() - asking;
  hangUp();
  await Promise.all(sent);
  await eventually('the others were sent', () => acquires().length === 850);
  assert.equal(asked.filter((line) => JSON.parse(line).open).length, 2);
  acquires().slice(800).forEach(({ wait }) => assert.ok(parseFloat(wait) * 1e3 <= 600_000 - passed + 20, wait));
  controller.abort();
  await Promise.all(queued);
});

test('a sidecar that is silent ends those who queue in the client, too', async (t) => {
  const { client, asked } = await scripted(t, { countedAt: `${now() / 1e3}s` });
  await client.open();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let ended = 0;
  const all = numbers(801).map(() => client.acquire('r').catch((err) => { ended += err.reason === 'SIDECAR_SILENT'; }));
  for (let i = 0; ended < 801 && i < 10; i++) {
    t.mock.timers.tick(5_000);
    await new Promise((resolve) => { setImmediate(() => setImmediate(resolve)); });
  }
  assert.equal(ended, 801);
  t.mock.timers.reset();
  await Promise.all(all);
  await eventually('they were cancelled', () => asked.filter((line) => JSON.parse(line).cancel).length === 800);
  assert.equal(asked.filter((line) => JSON.parse(line).acquire).length, 800);
});

test('who is refused keeps its place before those who came later', async (t) => {
  const countedAt = `${now() / 1e3}s`;
  const { client, asked, say, tell } = await scripted(t, { countedAt });
  await client.open();
  const acquires = () => asked.map((line) => JSON.parse(line)).filter(({ acquire }) => acquire);
  const all = ['a', 'b', 'c', 'd'].map((resource) => client.acquire(resource));
  await eventually('they were sent', () => acquires().length === 4);
  const [first, ...others] = acquires().map(({ requestId }) => requestId);
  others.forEach((requestId) => say({ requestId, error: { message: 'too many', details: full(1) } }));
  tell({ draining: { countedAt, remaining: '9s' } });
  await eventually('all that is read', () => client.draining);
  all.push(client.acquire('e'));
  const grant = (requestId) => say({ requestId, granted: { lockId: requestId, resource: 'r', mode: 'EXCLUSIVE', fence: '1', validFor: '900s', countedAt } });
  grant(first);
  for (let i = 5; i <= 8; i++) {
    await eventually('the next was sent', () => acquires().length === i);
    grant(acquires()[i - 1].requestId);
  }
  await Promise.all(all);
  assert.deepEqual(acquires().slice(4).map(({ acquire }) => acquire.resource), ['b', 'c', 'd', 'e']);
});
