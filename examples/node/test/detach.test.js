// Locks that are taken here and released there.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inspect } from 'node:util';
import { Detached, LockSidecar } from '../index.js';
import { Sidecar, aborted, eventually } from './sidecars.js';

async function start(t, options) {
  const sidecar = await Sidecar.start(t, options);
  const client = new LockSidecar({ socket: sidecar.socket });
  t.after(() => client.close());
  return { sidecar, client };
}

test('work that detaches its lock ends quietly', async (t) => {
  const { sidecar, client } = await start(t);
  let lock;
  const detached = await client.hold('a', { detachable: true }, async (held) => {
    lock = held;
    return held.detach(60_000);
  });
  assert.ok(detached instanceof Detached && lock.released && !lock.lost && lock.count === 0);
  assert.throws(() => lock.check(), { reason: 'NOT_HOLDER', message: /was detached/ });
  assert.deepEqual([detached.resource, detached.fence, detached.limit], ['a', lock.fence, undefined]);
  await assert.rejects(client.acquire('a', { wait: 0 }), { reason: 'LOCK_HELD' });
  assert.equal(await client.holdAttached(detached.handle, async (held) => {
    assert.equal(held.fence, lock.fence);
    held.check();
    return 'done';
  }), 'done');
  assert.deepEqual((await sidecar.lock('a')).holders, []);
  await assert.rejects(client.holdAttached(detached, { owner: 'worker' }, () => assert.fail('it runs')), { reason: 'NOT_HOLDER' });
});

test('an attach that is given up leaves the lock to the next one who has the handle', async (t) => {
  const { sidecar, client } = await start(t, { more: ['--ttl', '1m'] });
  const detached = await client.hold('a', { detachable: true }, (lock) => lock.detach(3_600_000));
  sidecar.freeze();
  await assert.rejects(client.attach(detached), { reason: 'SIDECAR_SILENT' });
  sidecar.thaw();
  await client.hold('other', async () => { // what was sent before is carried out
    await assert.rejects(client.acquire('a', { wait: 0 }), { reason: 'LOCK_HELD' });
  });
  await client.holdAttached(detached, (lock) => lock.check());
  await client.hold('a', { wait: 0 }, () => {});
});

test('a handle is a password', async (t) => {
  const { client } = await start(t);
  const lock = await client.acquire('a', { limit: 2, detachable: true });
  const detached = await lock.detach(60_000);
  assert.equal(detached.limit, 2);
  assert.ok(!inspect(detached).includes(detached.handle) && inspect(detached).includes("resource: 'a'"), inspect(detached));
  assert.deepEqual(JSON.parse(JSON.stringify(detached)), { resource: 'a', shared: false, fence: `${lock.fence}`, limit: 2 });
  for (const handle of ['', undefined, null, 7, { handle: 'secret' }, ['secret'], '\ud800', 'x'.repeat(70_000)]) {
    for (const call of [() => client.attach(handle), () => client.extendDetached(handle, 60_000), () => client.releaseDetached(handle)]) {
      await assert.rejects(call(), (err) => {
        assert.deepEqual([err.reason, err.metadata], ['INVALID_REQUEST', { field: 'handle' }]);
        assert.doesNotMatch(err.message, /secret/);
        return true;
      });
    }
  }
  await client.releaseDetached(detached);
});

test('values that make no sense', async (t) => {
  const { client } = await start(t);
  await client.hold('a', { detachable: true }, async (lock) => {
    for (const ttl of [undefined, NaN, -1, Infinity, '1h']) {
      await assert.rejects(lock.detach(ttl), { reason: 'INVALID_REQUEST', metadata: { field: 'ttl' } });
      await assert.rejects(client.extendDetached('lsh1_', ttl), { reason: 'INVALID_REQUEST', metadata: { field: 'ttl' } });
    }
    lock.check();
  });
  await assert.rejects(client.acquire('a', { detachable: 'yes' }), { metadata: { field: 'detachable' } });
  await assert.rejects(client.attach('lsh1_', { wait: 5 }), { reason: 'INVALID_REQUEST', metadata: { field: 'wait' } });
  await assert.rejects(client.holdAttached('lsh1_'), { metadata: { field: 'work' } });
});

test('a handle that nobody waits for', async (t) => {
  const { sidecar, client } = await start(t, { more: ['--ttl', '1m'] });
  const lock = await client.acquire('a', { detachable: true });
  sidecar.freeze();
  await assert.rejects(lock.detach(3_600_000), { reason: 'SIDECAR_SILENT' });
  assert.equal((await aborted(lock.signal)).lostReason, 'UNKNOWN');
  assert.throws(() => lock.check(), { reason: 'LOCK_LOST' });
  sidecar.thaw();
  await eventually('it is free', async () => (await sidecar.lock('a')).holders.length === 0);
});
