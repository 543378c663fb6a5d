// Takes one lock and says so, and holds it until it is killed or loses it.
import { once } from 'node:events';
import { LockSidecar } from '../node/index.js';

console.log('waiting');
const sidecar = new LockSidecar();
const lock = await sidecar.acquire(process.argv[2]);
console.log(`held ${lock.fence}`);
if (!lock.lost) {
  await once(lock.signal, 'abort');
}
console.log(`lost ${lock.signal.reason.lostReason}`);
await sidecar.close();
