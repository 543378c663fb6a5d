// What becomes of calls whose sidecar hangs up or is silent.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LockSidecar } from '../index.js';
import { Relay } from './relay.js';
import { Sidecar, aborted, eventually } from './sidecars.js';

function connect(t, socket, options) {
  const client = new LockSidecar({ socket, ...options });
  t.after(() => client.close());
  return client;
}

test('a sidecar that hangs up on the first calls', async (t) => {
  const sidecar = await Sidecar.start(t);
  for (const hangUp of [1, 4]) {
    const relay = await Relay.start(t, sidecar, { hangUp });
    await connect(t, relay.socket).hold('a', { wait: 5_000 }, (lock) => lock.check());
    assert.equal(relay.hungUp, hangUp);
  }
});

test('a sidecar that always hangs up', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar, { hangUp: Infinity });
  await assert.rejects(connect(t, relay.socket, { connectTimeout: 300 }).open(), { reason: 'SIDECAR_GONE' });
});

test('close ends the calls', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar, { hangUp: Infinity });
  const client = connect(t, relay.socket, { connectTimeout: Infinity });
  const asked = assert.rejects(client.acquire('a'), { reason: 'SESSION_CLOSED' });
  await eventually('it has called twice', () => relay.hungUp > 1);
  await client.close();
  await asked;
});

test('the end of work whose sidecar has just gone', async (t) => {
  const relay = await Relay.start(t, await Sidecar.start(t));
  const client = connect(t, relay.socket);
  let lock;
  await client.hold('a', (held) => { // it was held for as long as the work lasted
    lock = held;
    relay.hangUp();
  });
  await assert.rejects(lock.release(), { reason: 'NOT_HOLDER' });
});

test('an acquire on a connection that has ended unheard goes to the next sidecar', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '1s'] });
  const client = connect(t, sidecar.socket);
  await client.hold('a', () => {});
  sidecar.killUnheard();
  await assert.rejects(client.acquire('a'), { reason: 'NO_SIDECAR' });
  await sidecar.ended();
  await sidecar.run();
  await client.hold('a', () => {});
  sidecar.killUnheard();
  const asked = Promise.all([client.acquire('b', { wait: 0 }), client.acquire('c', { wait: 0 })]);
  await assert.rejects(asked, { reason: 'NO_SIDECAR' });
});

test('an acquire that was never sent outlives one connection after the other', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--max-waiters', '1'] });
  const relay = await Relay.start(t, sidecar, { counts: 'LIMIT_EXCEEDED' });
  const theirs = await connect(t, sidecar.socket).acquire('a');
  const client = connect(t, relay.socket);
  const asked = [0, 1, 2, 3].map(() => client.acquire('a'));
  const all = Promise.allSettled(asked);
  for (let broken = 0; broken < 3; broken++) { // each time one waits at the sidecar, and the others queue here
    const rest = 3 - broken;
    const before = relay.counted;
    await eventually('the others queue', () => relay.counted >= before + rest);
    relay.cut();
    await assert.rejects(asked[broken], { reason: 'SIDECAR_GONE' });
  }
  await theirs.release();
  await (await asked[3]).release();
  await all;
});

test('a release that a frozen sidecar does not answer is carried out later', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '1m'] });
  const client = connect(t, sidecar.socket);
  const lock = await client.acquire('a', { owner: 'me', reentrant: true });
  const inner = await client.acquire('a', { owner: 'me', reentrant: true });
  sidecar.freeze();
  await assert.rejects(inner.release(), { reason: 'SIDECAR_SILENT' });
  sidecar.thaw();
  await assert.rejects(inner.release(), { reason: 'NOT_HOLDER' });
  lock.check();
  await lock.release();
  assert.deepEqual((await sidecar.lock('a')).holders, []);
});

for (const fails of [false, true]) {
  test(`the end of work that ${fails ? 'fails' : 'succeeds'} releases what was lost`, async (t) => {
    const sidecar = await Sidecar.start(t);
    const client = connect(t, sidecar.socket);
    let forcing;
    await assert.rejects(client.hold('a', async (lock) => {
      forcing = sidecar.force('a', '60s'); // returns when the sidecar knows that the work has stopped
      await aborted(lock.signal);
      if (fails) {
        throw new TypeError('no');
      }
    }), fails ? TypeError : { reason: 'LOCK_LOST', lostReason: 'FORCED' });
    await Promise.all([forcing, client.hold('a', { wait: 30_000 }, () => {})]);
  });
}

test('what was lost by silence is released when the sidecar is back', async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '1s'] });
  const client = connect(t, sidecar.socket);
  await assert.rejects(client.hold('a', async (lock) => {
    sidecar.freeze();
    await aborted(lock.signal);
  }), { reason: 'LOCK_LOST', lostReason: 'SIDECAR_SILENT' });
  sidecar.thaw();
  await client.hold('a', { wait: 20_000 }, () => {});
});
