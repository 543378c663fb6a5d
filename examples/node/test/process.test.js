import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { LockSidecar } from '../index.js';
import { now } from '../lib/clock.cjs';
import { Sidecar, eventually, stores } from './sidecars.js';

const index = new URL('../index.js', import.meta.url);
const invoices = fileURLToPath(new URL('../invoices.js', import.meta.url));

/** Starts node, to be killed at the end of the test. */
function node(t, sidecar, ...args) {
  const child = spawn(process.execPath, args, { env: { ...process.env, LOCKSIDECAR_SOCKET: sidecar.socket } });
  t.after(() => child.kill('SIGKILL'));
  const run = { child, out: '', err: '' };
  child.stdout.setEncoding('utf8').on('data', (chunk) => { run.out += chunk; });
  child.stderr.setEncoding('utf8').on('data', (chunk) => { run.err += chunk; });
  run.ended = new Promise((resolve) => {
    child.on('close', (code, signal) => resolve(signal ?? code));
  });
  return run;
}

const holder = `
  import { LockSidecar } from '${index}';
  const lock = await new LockSidecar().acquire('a');
  console.log('held');`;

for (const signal of ['SIGKILL', 'SIGTERM', 'SIGINT']) {
  test(`a holder that ends by ${signal}`, async (t) => {
    const sidecar = await Sidecar.start(t, { more: ['--ttl', '1m'] });
    const run = node(t, sidecar, '--input-type=module', '-e', holder);
    await eventually('it holds', () => run.out.includes('held'));
    const client = new LockSidecar({ socket: sidecar.socket });
    t.after(() => client.close());
    const waiting = client.acquire('a');
    await eventually('we wait', async () => (await sidecar.lock('a')).waiters.length === 1);
    const ended = now();
    run.child.kill(signal);
    await waiting;
    assert.ok(now() - ended < 5_000, 'long before the TTL');
    t.diagnostic(`free after ${(now() - ended).toFixed(1)} ms`);
    assert.equal(await run.ended, signal);
  });
}

test('a script ends when it holds nothing and waits for nothing', async (t) => {
  const sidecar = await Sidecar.start(t);
  const script = (then) => node(t, sidecar, '--input-type=module', '-e', `
    import { LockSidecar } from '${index}';
    const sidecar = new LockSidecar();
    ${then}`);
  const runs = [
    script("await sidecar.hold('a', { wait: 20_000 }, () => {});"),
    script("sidecar.unref(); await sidecar.acquire('b');"), // never released
    script("await sidecar.acquire('c'); sidecar.unref();"),
    script("const lock = await sidecar.acquire('d'); setTimeout(() => lock.release(), 200).unref(); await (await sidecar.acquire('d')).release();"),
  ];
  for (const run of runs) {
    assert.equal(await run.ended, 0, run.err);
  }
});

for (const store of stores) {
  test(`nobody draws an invoice number twice on ${store.name}`, async (t) => {
    const sidecars = [await Sidecar.start(t, { store, count: store.shared ? 2 : 1 })].flat();
    const dir = await fs.mkdtemp(path.join(os.tmpdir(), 'invoices-'));
    t.after(() => fs.rm(dir, { recursive: true }));
    const file = path.join(dir, 'last');
    const runs = [0, 1, 2, 3].map((i) => node(t, sidecars[i % sidecars.length], invoices, file, '25'));
    for (const run of runs) {
      assert.equal(await run.ended, 0, run.err);
    }
    const drawn = runs.flatMap((run) => run.out.trim().split('\n')).map((line) => Number(line.split(' ')[1]));
    assert.deepEqual(drawn.sort((a, b) => a - b), Array.from({ length: 100 }, (_, i) => i + 1));
  });
}

test('no sidecar', async (t) => {
  const run = node(t, { socket: '/nowhere/s' }, invoices, 'x', '1');
  assert.equal(await run.ended, 1);
  assert.equal(run.err, 'NO_SIDECAR: no sidecar answers at /nowhere/s: there is no such socket; '
    + 'start a sidecar with: locksidecar serve --socket /nowhere/s\n');
});
