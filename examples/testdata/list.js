// Prints what is held, and which shards of the store do not answer: to a list, and to a watch.
import { IncompleteError, LockSidecar } from '../node/index.js';

const sidecar = new LockSidecar();
try {
  for await (const { resource } of sidecar.list()) {
    console.log(resource);
  }
} catch (err) {
  if (!(err instanceof IncompleteError)) {
    throw err;
  }
  console.log(['lacks', ...err.missing].join(' '));
}
for await (const { kind, missingShards } of sidecar.watch()) {
  console.log([kind, ...missingShards].join(' '));
  break;
}
