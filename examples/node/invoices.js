#!/usr/bin/env node
// Draws invoice numbers from a file, as many processes may do at once:
//
//   node invoices.js FILE COUNT
//
// Nobody draws a number twice, and nobody writes with a lock that is lost.
import fs from 'node:fs/promises';
import { LockSidecar } from './index.js';

const [file, count] = process.argv.slice(2);

async function draw(lock) {
  const last = Number(await fs.readFile(file, 'utf8').catch(() => '0'));
  const number = last + 1;
  lock.check(); // just before the write: throws when the lock is lost by now
  await fs.writeFile(file, `${number}\n`, { signal: lock.signal });
  return number;
}

const sidecar = new LockSidecar({ name: 'invoices' }); // $LOCKSIDECAR_SOCKET, or the default
try {
  for (let i = 0; i < Number(count); i++) {
    const number = await sidecar.hold(`invoices/${file}`, { wait: 60_000 }, draw);
    console.log(`invoice ${number}`);
  }
} catch (err) {
  // LOCK_LOST: the number may have been drawn; NO_SIDECAR: the message says what to do.
  console.error(`${err.reason ?? err.name}: ${err.message}`);
  process.exitCode = 1;
} finally {
  await sidecar.close(); // else this process would live on with its session
}
