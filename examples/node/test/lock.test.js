import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLostError, LockSidecar, SidecarError } from '../index.js';
import { Sidecar, aborted, eventually } from './sidecars.js';

async function start(t, options) {
  const sidecar = await Sidecar.start(t, options);
  const client = new LockSidecar({ socket: sidecar.socket, name: 'test' });
  t.after(() => client.close());
  return { sidecar, client };
}

test('hold releases when work ends', async (t) => {
  const { sidecar, client } = await start(t);
  let first;
  const result = await client.hold('a', async (lock) => {
    first = lock;
    assert.ok(lock.validFor() > 0 && lock.validFor() <= 6000);
    assert.equal(typeof lock.fence, 'bigint');
    lock.check();
    const { holders } = await sidecar.lock('a');
    assert.deepEqual(holders.map((h) => [h.session, h.pid]), [['test', process.pid]]);
    return 42;
  });
  assert.equal(result, 42);
  assert.equal(first.count, 0);
  assert.equal(first.lost, false);
  assert.throws(() => first.check(), { reason: 'NOT_HOLDER' });
  await client.hold('a', { wait: 0 }, (lock) => assert.ok(lock.fence > first.fence));
});

test('hold releases when work throws', async (t) => {
  const { client } = await start(t);
  await assert.rejects(client.hold('a', () => { throw new TypeError('no'); }), TypeError);
  await client.hold('a', { wait: 0 }, () => {});
});

test('tasks of one process exclude each other, in order', async (t) => {
  const { client } = await start(t);
  await client.hold('b', () => {}); // the session is open
  const order = [];
  let inside = 0;
  await Promise.all([1, 2, 3, 4].map(async (n) => {
    await sleep(n * 200);
    await client.hold('a', async () => {
      assert.equal(++inside, 1);
      order.push(n);
      await sleep(400);
      inside--;
    });
  }));
  assert.deepEqual(order, [1, 2, 3, 4]);
});

test('not reentrant unless asked', async (t) => {
  const { sidecar, client } = await start(t);
  await client.hold('a', { owner: 'me' }, async (lock) => {
    await assert.rejects(client.acquire('a', { owner: 'me', wait: 0 }), { reason: 'LOCK_HELD' });
    await assert.rejects(client.acquire('a', { owner: 'me', wait: 50 }), { reason: 'WAIT_TIMEOUT' });
    await assert.rejects(client.acquire('a', { owner: 'me', wait: 0, reentrant: true }), { reason: 'LOCK_HELD' });
    assert.equal(lock.count, 1);
    const { holders } = await sidecar.lock('a');
    assert.deepEqual(holders.map((h) => h.owner), ['me']);
  });
  await assert.rejects(client.acquire('a', { reentrant: true }), { reason: 'INVALID_REQUEST', metadata: { field: 'owner' } });
});

test('one owner re-enters, if it asks for that', async (t) => {
  const { client } = await start(t);
  const outer = await client.acquire('a', { owner: 'me', reentrant: true });
  const inner = await client.acquire('a', { owner: 'me', reentrant: true, wait: 0 });
  await assert.rejects(client.acquire('a', { owner: 'you', reentrant: true, wait: 0 }), { reason: 'LOCK_HELD' });
  assert.deepEqual([inner.id, inner.fence, outer.count], [outer.id, outer.fence, 2]);
  await inner.release();
  await inner[Symbol.asyncDispose](); // releases nothing of the outer one
  assert.throws(() => inner.check(), { reason: 'NOT_HOLDER' });
  outer.check();
  await outer.release();
  assert.equal(outer.count, 0);
  await assert.rejects(outer.release(), { reason: 'NOT_HOLDER' });
});

test('not granted', async (t) => {
  const { client } = await start(t);
  await client.acquire('a');
  await assert.rejects(client.acquire('a', { wait: 0 }), (err) => {
    assert.ok(err instanceof SidecarError);
    assert.equal(err.reason, 'LOCK_HELD');
    assert.equal(err.metadata.holder_pid, `${process.pid}`);
    return true;
  });
  await assert.rejects(client.acquire('a', { wait: 50 }), { reason: 'WAIT_TIMEOUT' });
  await assert.rejects(client.acquire(''), { reason: 'INVALID_REQUEST' });
});

test('shared holds, and downgrade', async (t) => {
  const { client } = await start(t);
  const writer = await client.acquire('a');
  await assert.rejects(client.acquire('a', { shared: true, wait: 0 }), { reason: 'LOCK_HELD' });
  await writer.downgrade();
  assert.equal(writer.shared, true);
  const reader = await client.acquire('a', { shared: true, wait: 0 });
  await assert.rejects(client.acquire('a', { wait: 0 }), { reason: 'LOCK_HELD' });
  await Promise.all([writer.release(), reader.release()]);
  await client.hold('a', { wait: 0 }, () => {});
});

test('an aborted wait leaves nothing queued', async (t) => {
  const { sidecar, client } = await start(t);
  const held = await client.acquire('a');
  const controller = new AbortController();
  const waiting = client.acquire('a', { signal: controller.signal });
  await eventually('it waits', async () => (await sidecar.lock('a')).waiters.length === 1);
  controller.abort(new Error('enough'));
  await assert.rejects(waiting, /enough/);
  await eventually('it has left', async () => (await sidecar.lock('a')).waiters.length === 0);
  await held.release();
  await client.hold('a', { wait: 0 }, () => {});
  await assert.rejects(client.acquire('a', { signal: AbortSignal.abort() }), { name: 'AbortError' });
});

for (const reason of [null, 0, '', false]) {
  test(`an abort with the reason ${JSON.stringify(reason)} ends the wait`, async (t) => {
    const { sidecar, client } = await start(t);
    await client.acquire('a');
    const controller = new AbortController();
    const asked = client.acquire('a', { signal: controller.signal }).then(() => 'granted', (err) => [err]);
    await eventually('it waits', async () => (await sidecar.lock('a')).waiters.length === 1);
    controller.abort(reason);
    assert.deepEqual(await asked, [reason]);
    await eventually('it has left', async () => (await sidecar.lock('a')).waiters.length === 0);
  });
}

test('an abort beside the opening of the session ends the wait', async (t) => {
  const { sidecar, client } = await start(t);
  await client.acquire('a');
  for (let ticks = 0; ticks < 16; ticks++) { // around the moment at which the acquire goes on
    const opening = new LockSidecar({ socket: sidecar.socket });
    t.after(() => opening.close());
    const controller = new AbortController();
    const asked = assert.rejects(opening.acquire('a', { signal: controller.signal }), { name: 'AbortError' });
    await opening.open();
    for (let i = 0; i < ticks; i++) {
      await undefined;
    }
    controller.abort();
    await asked;
  }
});

test('an abort beside the grant leaves nothing held', async (t) => {
  const { sidecar, client } = await start(t);
  await client.hold('warm', () => {});
  for (let i = 0; i < 100; i++) {
    const controller = new AbortController();
    const asked = client.acquire(`a${i}`, { signal: controller.signal });
    const delay = i / 20; // around the time that a grant takes
    setTimeout(() => controller.abort(), delay);
    await asked.then((lock) => lock.release(), () => {});
  }
  await eventually('nothing is held', async () => {
    const { locks } = JSON.parse((await sidecar.get('/v1/locks')).body);
    return locks.length === 0;
  });
});

test('a forced release', async (t) => {
  const { sidecar, client } = await start(t);
  const lock = await client.acquire('a');
  const forcing = sidecar.force('a', '20s');
  const err = await aborted(lock.signal);
  assert.ok(err instanceof LockLostError);
  assert.deepEqual(
    [err.reason, err.lostReason, err.resource, err.lockId, err.fence],
    ['LOCK_LOST', 'FORCED', 'a', lock.id, lock.fence],
  );
  assert.ok(err.graceLeft() > 0);
  assert.throws(() => lock.check(), err);
  assert.equal(lock.validFor(), 0);
  await assert.rejects(lock.release(), err); // and this ends the grace
  await forcing;
  await client.hold('a', { wait: 10_000 }, () => {});
});

test('work that ends after the loss', async (t) => {
  const { sidecar, client } = await start(t);
  await assert.rejects(client.hold('a', async (lock) => {
    await sidecar.force('a', '0s');
    await aborted(lock.signal);
  }), { reason: 'LOCK_LOST', lostReason: 'FORCED' });
});

test('maxHold', async (t) => {
  const { client } = await start(t);
  const lock = await client.acquire('a', { maxHold: 200 });
  assert.ok(lock.validFor() <= 200);
  const err = await aborted(lock.signal);
  assert.equal(err.lostReason, 'MAX_HOLD');
  assert.ok(err.graceLeft() > 0, 'the sidecar has said how long it keeps others out');
});

test('close releases, and only open() opens another session', async (t) => {
  const { sidecar, client } = await start(t);
  const lock = await client.acquire('a');
  const waiting = assert.rejects(client.acquire('a'), { reason: 'SESSION_CLOSED' });
  await eventually('it waits', async () => (await sidecar.lock('a')).waiters.length === 1);
  await client.close();
  assert.equal(lock.signal.reason.lostReason, 'SESSION_CLOSED');
  await waiting;
  const { holders, waiters } = await sidecar.lock('a');
  assert.deepEqual([holders, waiters], [[], []]);
  await assert.rejects(client.acquire('a'), { reason: 'SESSION_CLOSED' });
  await client.close();
  await client.open();
  await client.hold('a', { wait: 0 }, () => {});
});
