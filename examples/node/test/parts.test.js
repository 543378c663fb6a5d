// What needs no sidecar.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { LockSidecar } from '../index.js';
import { SidecarClock, formatDuration, now, parseDuration } from '../lib/clock.js';
import { defaultSocket } from '../lib/socket.js';

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

test('moments of the sidecar', () => {
  const clock = new SidecarClock();
  clock.answered(1_000, '51.100s'); // their clock is 50 s ahead, and 0.1 s passed before it was counted
  clock.answered(2_000, '52.050s'); // closer to the truth
  clock.answered(3_000, '53.080s');
  assert.equal(clock.until('60s', 500), 60_000 - 50_050 + 500);
});

test('the default socket', (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'ls-'));
  t.after(() => fs.rmSync(dir, { recursive: true }));
  const [uid, nowhere] = [process.getuid(), path.join(dir, 'no', 'where')];
  assert.equal(defaultSocket({ LOCKSIDECAR_SOCKET: '/x/y' }), '/x/y');
  assert.equal(defaultSocket({}, path.join(dir, 'can-be-made'), dir, uid), path.join(dir, 'can-be-made', 'locksidecar.sock'));
  assert.equal(defaultSocket({ XDG_RUNTIME_DIR: '/x' }, nowhere, dir, uid), '/x/locksidecar/locksidecar.sock');
  const own = path.join(dir, `locksidecar-${uid}`);
  assert.equal(defaultSocket({}, nowhere, dir, uid), path.join(own, 'locksidecar.sock'));
  fs.mkdirSync(own);
  fs.chmodSync(own, 0o777);
  assert.throws(() => defaultSocket({}, nowhere, dir, uid), /set LOCKSIDECAR_SOCKET/);
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
