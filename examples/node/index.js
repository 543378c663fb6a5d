// The same objects as require() gives: a process has one client, whoever loads it.
export { Detached, IncompleteError, Lock, LockLostError, LockSidecar, SidecarError, defaultSocket } from './index.cjs';
