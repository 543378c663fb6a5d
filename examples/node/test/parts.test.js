// What needs no sidecar.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { LockSidecar } from '../index.js';
import { Acquires } from '../lib/acquires.cjs';
import { SidecarClock, formatDuration, now, parseDuration } from '../lib/clock.cjs';
import { Hold } from '../lib/hold.cjs';
import { Holds } from '../lib/holds.cjs';
import { scripted } from './scripted.js';
import { eventually } from './sidecars.js';

test('durations', () => {
  assert.equal(parseDuration('8.987654321s'), 8987.654321);
  assert.equal(parseDuration('0s'), 0);
  assert.equal(formatDuration(1500), '1.500000000s');
});

test('the clock never goes back', () => {
  for (let i = 0, last = now(); i < 10_000; i++) {
    const t = now();
    assert.ok(t >= last);
    last = t;
  }
  assert.ok(Math.abs(now() - os.uptime() * 1e3) < 1_000);
});

test('the clock sees a suspend at once, and soon where the wall clock was set back by as much', () => {
  const clock = JSON.stringify(new URL('../lib/clock.cjs', import.meta.url).pathname);
  const seen = execFileSync(process.execPath, ['-e', `
    let [running, wall, slept, looks] = [5_000, 9_000, 0, 0];
    performance.now = () => running;
    Date.now = () => wall + running + slept;
    require('node:os').uptime = () => {
      looks++;
      return (running + slept) / 1e3;
    };
    const { now } = require(${clock});
    const seen = [];
    const look = () => seen.push(now());
    look();
    running += 100;
    look(); // without asking for the uptime
    seen.push(looks);
    slept += 70;
    look();
    slept += 30_000;
    wall -= 30_000;
    running += 101;
    look();
    console.log(JSON.stringify(seen));
  `], { encoding: 'utf8' });
  assert.deepEqual(JSON.parse(seen), [5_000, 5_100, 1, 5_170, 35_271]);
});

test('the clock takes no standstill of the process for a suspend', () => {
  const clock = JSON.stringify(new URL('../lib/clock.cjs', import.meta.url).pathname);
  const seen = execFileSync(process.execPath, ['-e', `
    let [running, stops] = [5_000, []];
    const stand = () => { running += stops.shift() ?? 0; }; // before a look at a clock
    performance.now = () => (stand(), running);
    Date.now = () => (stand(), 9_000 + running);
    require('node:os').uptime = () => (stand(), running / 1e3);
    const { now } = require(${clock});
    const seen = [];
    for (const before of [[200, 7_000], [200, 0, 7_000], [200, 0, 0, 7_000], [200, ...Array(100).fill(50)]]) {
      stops = before;
      now();
      stops = [];
      seen.push(now() - running);
    }
    console.log(JSON.stringify(seen));
  `], { encoding: 'utf8' });
  assert.deepEqual(JSON.parse(seen), [0, 0, 0, 0]);
});

test('moments of the sidecar', () => {
  const clock = new SidecarClock();
  clock.answered(1_000, '51.100s'); // their clock is 50 s ahead, and 0.1 s passed before it was counted
  clock.answered(2_000, '52.050s'); // closer to the truth
  clock.answered(3_000, '53.080s');
  assert.equal(clock.until('60s', 500), 60_000 - 50_050 + 500);
});

test('the socket of a dead sidecar', async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'ls-'));
  t.after(() => fs.rmSync(dir, { recursive: true }));
  const socket = path.join(dir, 's');
  fs.writeFileSync(socket, '');
  await assert.rejects(new LockSidecar({ socket }).acquire('a'), {
    reason: 'NO_SIDECAR', message: `no sidecar answers at ${socket}: the sidecar that made it is gone; `
      + `start one with: locksidecar serve --socket ${socket}`,
  });
});

test('a sidecar that takes no connections', async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'ls-'));
  const socket = path.join(dir, 's');
  const frozen = new Worker(`
    const { parentPort, workerData: { socket, thaw } } = require('node:worker_threads');
    const server = require('node:net').createServer((c) => c.destroy()).listen({ path: socket, backlog: 1 }, () => {
      parentPort.postMessage('listens');
      Atomics.wait(thaw, 0, 0);
    });
  `, { eval: true, workerData: { socket, thaw: new Int32Array(new SharedArrayBuffer(4)) } });
  await new Promise((resolve, reject) => { frozen.once('message', resolve).once('error', reject); });
  const waiting = [0, 1, 2, 3].map(() => net.connect(socket).on('error', () => {}));
  t.after(async () => {
    waiting.forEach((one) => one.destroy());
    await frozen.terminate();
    fs.rmSync(dir, { recursive: true });
  });
  await eventually('there is no room', () => waiting.some((one) => one.destroyed));
  const client = new LockSidecar({ socket, connectTimeout: 200 });
  const none = { reason: 'NO_SIDECAR', message: `no sidecar answers at ${socket}: it takes no connections; the sidecar may be frozen` };
  await assert.rejects(client.acquire('a'), none);
});

// Something accepts and says nothing.
test('a sidecar that never answered', { timeout: 20_000 }, async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'ls-'));
  const socket = path.join(dir, 's');
  const connections = [];
  const server = net.createServer((c) => { connections.push(c); }).listen(socket);
  t.after(() => {
    connections.forEach((c) => c.destroy());
    server.close();
    fs.rmSync(dir, { recursive: true });
  });
  await assert.rejects(new LockSidecar({ socket }).acquire('a'), { reason: 'SIDECAR_SILENT' });
  await assert.rejects(new LockSidecar({ socket }).acquire('a', { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
});

test('news of the lease prolong only what was held when they were counted', async (t) => {
  const base = Math.floor(now() / 1e3);
  const lease = (at) => ({ lease: { validFor: '900s', countedAt: `${base + at}s` } });
  let granted = 0;
  const { client, tell } = await scripted(t, { countedAt: `${base}s` }, () => (
    { lockId: `l${++granted}`, validFor: '50s', countedAt: `${base + 2}s` }
  ));
  await client.open();
  tell(lease(1));
  const lock = await client.acquire('r');
  assert.ok(lock.validFor() < 60_000, `${lock.validFor()}`);
  tell(lease(3));
  await eventually('the news are read', () => lock.validFor() > 800_000);
  const next = await client.acquire('r'); // its grant was overtaken by the news
  assert.ok(next.validFor() > 800_000, `${next.validFor()}`);
});

test('news that were counted when a hold was over do not bring it back, also where nobody has looked yet', () => {
  const sent = now() - 10_000;
  const granted = (at) => {
    const holds = new Holds(new Acquires(), () => {});
    holds.opened({ sent }, { countedAt: '1s', leaseMargin: '1s' });
    const hold = holds.granted({ sent }, { lockId: 'l', resource: 'r', mode: 'EXCLUSIVE', fence: '1', validFor: '9s', countedAt: '1s' });
    holds.lease({ countedAt: at, validFor: '900s' });
    holds.expire(hold);
    const { problem } = hold;
    holds.end({ reason: 'SESSION_CLOSED', message: 'm' });
    return problem?.lostReason;
  };
  assert.deepEqual(['1s', '9.9s', '10s', '11s'].map(granted), [undefined, undefined, 'SIDECAR_SILENT', 'SIDECAR_SILENT']);
});

for (const [leaseMargin, slack] of [['0s', 0], ['0.1s', 50], ['60s', 250]]) {
  test(`a margin of ${leaseMargin}: the end by maxHold waits ${slack} ms for its news`, () => {
    const holds = new Holds(new Acquires(), () => {});
    holds.opened({ sent: now() }, { countedAt: '1s', leaseMargin });
    const hold = new Hold(holds, { lockId: 'l', resource: 'r', mode: 'EXCLUSIVE', fence: '1', countedAt: '0s' });
    [hold.until, hold.limit] = [900_000, 50_000];
    assert.deepEqual([hold.end(), hold.silentAt()], [50_000, 50_000 + slack]);
    hold.limit = Infinity;
    assert.equal(hold.silentAt(), 900_000, 'without a maxHold it is the end');
  });
}

test('a loss counts for grants that come after it', async (t) => {
  const countedAt = `${now() / 1e3}s`;
  const { client, asked, say, tell } = await scripted(t, { countedAt });
  await client.open();
  const grant = async (n) => {
    await eventually('it is asked', () => asked.length > n);
    const { requestId } = JSON.parse(asked[n]);
    say({ requestId, granted: { lockId: 'l', resource: 'r', mode: 'EXCLUSIVE', fence: '1', validFor: '900s', countedAt } });
  };
  const lost = { lockId: 'l', resource: 'r', fence: '1', reason: 'FORCED', message: 'it was forced', grace: '2s', countedAt };
  const options = { owner: 'me', reentrant: true };
  const entering = client.acquire('r', options);
  await grant(1);
  const outer = await entering;
  const again = client.acquire('r', options);
  await eventually('it is asked', () => asked.length === 3);
  tell({ lost }); // of a hold that is known
  await eventually('it is read', () => outer.lost);
  await grant(2);
  const inner = await again;
  assert.equal(inner.lost, true);
  assert.throws(() => inner.check(), { reason: 'LOCK_LOST', lostReason: 'FORCED' });
  assert.ok(inner.signal.reason.graceLeft() > 0);
});

test('losses that no grant comes for are bounded', () => {
  const acquires = new Acquires();
  const holds = new Holds(acquires, () => {});
  const countedAt = `${now() / 1e3}s`;
  holds.opened({ sent: now() }, { countedAt, leaseMargin: '1s' });
  acquires.enter({ ask: { what: 'r' } });
  for (let i = 0; i <= 10_000; i++) {
    holds.lost({ lockId: `l${i}`, reason: 'FORCED', message: 'm', grace: '1s', countedAt });
  }
  const grant = (lockId) => holds.granted({ sent: now() }, { lockId, resource: 'r', mode: 'EXCLUSIVE', fence: '1', validFor: '900s', countedAt });
  assert.deepEqual(['l0', 'l1', 'l10000'].map((id) => grant(id).problem?.lostReason), [undefined, 'FORCED', 'FORCED']);
  holds.end({ reason: 'SESSION_CLOSED', message: 'm' });
});

test('a wait without end at a sidecar that is silent', async (t) => {
  const { client, asked } = await scripted(t, { countedAt: `${now() / 1e3}s` });
  await client.open();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let ended;
  const waiting = client.acquire('r').catch((err) => { ended = err; });
  for (let i = 0; !ended && i < 10; i++) {
    t.mock.timers.tick(5_000);
    await new Promise((resolve) => { setImmediate(() => setImmediate(resolve)); });
  }
  assert.equal(ended?.reason, 'SIDECAR_SILENT');
  await waiting;
  t.mock.timers.reset();
  await eventually('it was asked, and told', () => asked.some((l) => l.includes('keepAlive')) && asked.some((l) => l.includes('cancel')));
});

test('a forced release may take its grace', async (t) => {
  const { client, asked, write } = await scripted(t);
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let ended = false;
  const forced = client.force('r', { grace: 60_000 }).finally(() => { ended = true; });
  await eventually('it is asked', () => asked.length > 0);
  t.mock.timers.tick(65_000);
  await new Promise((resolve) => { setImmediate(() => setImmediate(resolve)); });
  assert.equal(ended, false);
  write('{"requestId":"1","forceReleased":{"lockIds":["l"]}}\n');
  assert.deepEqual(await forced, ['l']);
});

test('a release that is answered with the loss', async (t) => {
  const countedAt = `${now() / 1e3}s`;
  const { client, asked, say } = await scripted(t, { countedAt }, () => ({ lockId: 'l', validFor: '900s', countedAt }));
  const lock = await client.acquire('r');
  const released = assert.rejects(lock.release(), { name: 'LockLostError', lostReason: 'STORE_LOST' });
  await eventually('it is asked', () => asked.length === 3);
  const details = [{ domain: 'locksidecar', reason: 'LOCK_LOST', metadata: { lost_reason: 'STORE_LOST' } }];
  say({ requestId: JSON.parse(asked[2]).requestId, error: { message: 'it is gone', details } });
  await released;
  assert.equal(lock.signal.reason.lostReason, 'STORE_LOST');
  assert.throws(() => lock.check(), { reason: 'LOCK_LOST' });
});

test('the end of what is attached is that of its handle', async (t) => {
  const base = Math.floor(now() / 1e3);
  const countedAt = `${base}s`;
  const { client, asked, say, tell } = await scripted(t, { countedAt }, () => (
    { lockId: 'l', validFor: '900s', countedAt, endsIn: '300s' }
  ));
  const lock = await client.attach('h');
  assert.deepEqual(JSON.parse(asked[1]).acquire, { owner: 'acquire 2', handle: 'h', wait: '0.000000000s' });
  assert.ok(lock.validFor() > 0 && lock.validFor() <= 300_000, `${lock.validFor()}`);
  tell({ lease: { validFor: '900s', countedAt: `${base + 1}s`, jeopardy: true } });
  await eventually('the news are read', () => lock.jeopardy);
  assert.ok(lock.validFor() <= 300_000, `${lock.validFor()}`);
  const extended = lock.extend(800_000);
  await eventually('it is asked', () => asked.length === 3);
  const { requestId } = JSON.parse(asked[2]);
  say({ requestId, extended: { lockId: 'l', mode: 'EXCLUSIVE', validFor: '900s', countedAt, endsIn: '600s' } });
  await extended;
  assert.ok(lock.validFor() > 300_000 && lock.validFor() <= 600_000, `${lock.validFor()}`);
});

test('a grant that comes late ends with its maxHold, which ran before', async (t) => {
  const base = Math.floor(now() / 1e3);
  const late = (lockId, at, endsIn) => ({ lockId, mode: 'EXCLUSIVE', validFor: '900s', countedAt: `${base + at}s`, endsIn });
  const grants = [late('l', 5, '55s'), late('over', 0, '0s')];
  const { client, asked, say } = await scripted(t, { countedAt: `${base}s`, leaseMargin: '1s' }, () => grants.shift());
  const lock = await client.acquire('r', { maxHold: 60_000 });
  assert.ok(lock.validFor() > 0 && lock.validFor() <= 60_000, `${lock.validFor()}`); // as if it had been counted in time
  const extended = lock.extend(100_000);
  await eventually('it is asked', () => asked.length === 3);
  say({ requestId: JSON.parse(asked[2]).requestId, extended: late('l', 10, '95s') });
  await extended;
  assert.ok(lock.validFor() > 60_000 && lock.validFor() <= 105_000, `${lock.validFor()}`);
  const over = await client.acquire('s', { maxHold: 60_000 });
  assert.throws(() => over.check(), { reason: 'LOCK_LOST', lostReason: 'MAX_HOLD' });
});

test('refusals of detach', async (t) => {
  const countedAt = `${now() / 1e3}s`;
  const { client, asked, say } = await scripted(t, { countedAt }, () => ({ lockId: `l${asked.length}`, validFor: '900s', countedAt }));
  for (const [reason, lost] of [['INVALID_REQUEST', false], ['LIMIT_EXCEEDED', false], ['STORE_UNAVAILABLE', true]]) {
    const lock = await client.acquire('r', { detachable: true });
    const sent = asked.length;
    const refused = assert.rejects(lock.detach(60_000), { name: 'SidecarError', reason });
    await eventually('it is asked', () => asked.length > sent);
    const { requestId } = JSON.parse(asked[sent]);
    say({ requestId, error: { message: 'no', details: [{ domain: 'locksidecar', reason, metadata: {} }] } });
    await refused;
    assert.deepEqual([lock.lost, lock.released], [lost, false]);
  }
});

test('a session with a ttl says again and again that its process lives', async (t) => {
  const { client, asked } = await scripted(t, { countedAt: '1s' }, undefined, { ttl: 150 });
  await client.open();
  assert.deepEqual(JSON.parse(asked[0]).open, { ttl: '0.150000000s' });
  await eventually('it has said so', () => asked.filter((line) => line.includes('keepAlive')).length > 2);
});

test('a character that comes in two pieces', async (t) => {
  const { client, asked, write } = await scripted(t, { countedAt: `${now() / 1e3}s` });
  const acquiring = assert.rejects(client.acquire('r'), { reason: 'INTERNAL', message: 'Zürich €' });
  await eventually('it is asked', () => asked.length === 2);
  const error = { message: 'Zürich €', details: [{ domain: 'locksidecar', reason: 'INTERNAL', metadata: {} }] };
  const line = Buffer.from(`${JSON.stringify({ requestId: JSON.parse(asked[1]).requestId, error })}\n`);
  for (const byte of line) {
    write(Buffer.of(byte));
    await new Promise(setImmediate); // each is read alone
  }
  await acquiring;
});
