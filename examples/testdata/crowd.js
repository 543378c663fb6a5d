// 1,000 tasks that hold a lock each at the same time. Prints how many the sidecar counts.
import { LockSidecar } from '../node/index.js';

const sidecar = new LockSidecar();
const locks = await Promise.all(Array.from({ length: 1_000 }, (_, i) => sidecar.acquire(`task/${i}`)));
console.log((await sidecar.info()).holds);
await Promise.all(locks.map((lock) => lock.release()));
