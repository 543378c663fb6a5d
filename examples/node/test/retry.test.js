// What a client asks for again, and what it does not.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
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
    const relay = await Relay.start(t, sidecar, hangUp);
    await connect(t, relay.socket).hold('a', { wait: 5_000 }, (lock) => lock.check());
    assert.equal(relay.hungUp, hangUp);
  }
});

test('a sidecar that always hangs up', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar, Infinity);
  await assert.rejects(connect(t, relay.socket, { connectTimeout: 300 }).open(), { reason: 'SIDECAR_GONE' });
});

test('close ends the calls', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar, Infinity);
  const client = connect(t, relay.socket, { connectTimeout: Infinity });
  const asked = assert.rejects(client.acquire('a'), { reason: 'SESSION_CLOSED' });
  await eventually('it has called twice', () => relay.hungUp > 1);
  await client.close();
  await asked;
});

test('a release whose answer is lost takes off one count', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar);
  const client = connect(t, relay.socket);
  const lock = await client.acquire('a', { owner: 'me', reentrant: true });
  await client.acquire('a', { owner: 'me', reentrant: true });
  let lost = 0;
  relay.lose = (head) => head.startsWith('DELETE') && lost++ === 0;
  const releases = () => relay.heads.filter((head) => head.startsWith('DELETE'));
  await lock.release();
  assert.equal(releases().length, 2, 'it was sent again');
  assert.equal(releases()[0], releases()[1]);
  assert.match(releases()[0], /\?requestId=/);
  assert.equal((await sidecar.lock('a')).holders.length, 1, 'it is held once more');
  lock.check();
  await lock.release();
  assert.equal(lock.count, 0);
  assert.equal(new Set(releases()).size, 2, 'each release has an id of its own');
});

test('a call whose connection makes room is sent again', async (t) => {
  const sidecar = await Sidecar.start(t);
  const relay = await Relay.start(t, sidecar);
  const client = connect(t, relay.socket);
  const kept = await client.acquire('kept');
  for (const kind of ['POST', 'DELETE']) {
    const evicted = [];
    relay.evict = (head) => head.startsWith(kind) && evicted.length < 4 && evicted.push(head) > 0;
    await client.hold('crowded', { wait: 5_000 }, () => {});
    assert.equal(evicted.length, 4);
    assert.equal(new Set(evicted).size, 1, 'it is the same request');
  }
  kept.check(); // the session does not hang on that connection
  assert.deepEqual((await sidecar.lock('crowded')).holders, []);
});

test('a release that finds no sidecar says that the lock is lost', async (t) => {
  const relay = await Relay.start(t, await Sidecar.start(t));
  const client = connect(t, relay.socket);
  const gone = { reason: 'LOCK_LOST', lostReason: 'SIDECAR_GONE' };
  let lock;
  await assert.rejects(client.hold('a', (held) => {
    lock = held;
    relay.evict = () => true; // the connection that is kept open
    relay.refuse();
  }), gone);
  await assert.rejects(lock.release(), gone);
});

/** Connections that are in use, until there is no place for one more. */
async function crowd(sidecar) {
  const all = [];
  for (let status = '200'; status === '200';) {
    const one = net.connect(sidecar.socket);
    all.push(one);
    const body = JSON.stringify({ resource: `crowd/${all.length}` });
    one.write(`POST /v1/hold HTTP/1.1\r\nHost: locksidecar\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    [, status] = `${(await once(one, 'data'))[0]}`.split(' ');
    assert.ok(['200', '429'].includes(status), status);
  }
  return all;
}

test('a release that has no connection is sent when there is one', { timeout: 60_000 }, async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--max-connections', '16'] });
  const client = connect(t, sidecar.socket);
  let next;
  let full;
  const held = client.hold('a', async () => {
    next = client.hold('a', () => {}); // has the connection that was idle
    await eventually('it waits', async () => (await sidecar.lock('a')).waiters.length === 1);
    full = await crowd(sidecar);
  });
  await assert.rejects(held, { reason: 'LIMIT_EXCEEDED' });
  full.forEach((one) => one.destroy());
  await next;
});

test('the app releases again what was not answered', { timeout: 60_000 }, async (t) => {
  const sidecar = await Sidecar.start(t, { more: ['--ttl', '1m'] });
  const client = connect(t, sidecar.socket);
  const lock = await client.acquire('a', { owner: 'me', reentrant: true });
  await client.acquire('a', { owner: 'me', reentrant: true });
  sidecar.freeze();
  await assert.rejects(lock.release(), { reason: 'SIDECAR_SILENT' });
  sidecar.thaw();
  await lock.release();
  assert.equal(lock.count, 1);
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
