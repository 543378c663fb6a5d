export { LockSidecar } from './lib/sidecar.js';
export { Lock } from './lib/lock.js';
export { SidecarError, LockLostError } from './lib/errors.js';
export { defaultSocket } from './lib/socket.js';
