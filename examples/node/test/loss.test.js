import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockSidecar } from '../index.js';
import { now } from '../lib/clock.cjs';
import { Sidecar, aborted, stores } from './sidecars.js';

function connect(t, sidecar) {
  const client = new LockSidecar({ socket: sidecar.socket });
  t.after(() => client.close());
  return client;
}

test('a sidecar that is killed', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '10s'] });
  const client = connect(t, sidecar);
  await client.hold('a', () => {}); // the connection was used before
  const lock = await client.acquire('a');
  const waiting = assert.rejects(client.acquire('a'), { reason: 'SIDECAR_GONE' });
  const killed = now();
  await sidecar.kill();
  const err = await aborted(lock.signal);
  assert.ok(now() - killed < 5_000, 'long before the lease could end');
  assert.equal(err.lostReason, 'SIDECAR_GONE');
  await waiting;
  await assert.rejects(lock.release(), err);
  await assert.rejects(client.acquire('b'), { reason: 'NO_SIDECAR' });

  await sidecar.run();
  const again = await client.acquire('b');
  assert.equal(lock.lost, true);
  await again.release();
});

for (const store of stores) {
  test(`a frozen sidecar on ${store.name}: lost before anybody else gets the lock`, async (t) => {
    const count = store.shared ? 2 : 1;
    const [frozen, other] = [await Sidecar.start(t, { store, count })].flat();
    const client = connect(t, frozen);
    const lock = await client.acquire('a');
    const next = other && connect(t, other).acquire('a').then(() => now());
    await sleep(1_000); // lease news keep it valid
    frozen.freeze();
    const froze = now();
    const err = await aborted(lock.signal);
    const lost = now();
    assert.equal(err.lostReason, 'SIDECAR_SILENT');
    assert.ok(lost - froze < 6_000 + 3_000, `told ${lost - froze} ms after the freeze`);
    if (next) {
      const granted = await next;
      assert.ok(lost < granted, `lost at ${lost}, granted at ${granted}`);
      t.diagnostic(`told ${Math.round(granted - lost)} ms before the next holder got it`);
    }
    frozen.thaw();
    assert.equal(lock.lost, true);
    await assert.rejects(lock.release(), err);
  });
}

// A program that computes without pause hears nothing; check() goes by the clock.
test('a frozen sidecar and a busy program', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '4s'] });
  const lock = await connect(t, sidecar).acquire('a');
  sidecar.freeze();
  const left = lock.validFor();
  const end = now() + left; // in this order: the clock may catch up by 10 ms in between
  assert.throws(() => {
    while (now() < end + 5_000) {
      const before = now();
      lock.check();
      assert.ok(before < end + 1, 'it was no longer good');
    }
  }, { reason: 'LOCK_LOST', lostReason: 'SIDECAR_SILENT' });
  sidecar.thaw();
});

// The sidecar's news lie unread meanwhile; they count before the silence does.
test('a program that was busy for longer than the TTL', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '3s'] });
  const lock = await connect(t, sidecar).acquire('a');
  await sleep(100);
  for (const begun = now(); now() < begun + 3_500;) { /* busy */ }
  await sleep(300);
  lock.check();
  await lock.release();
});
