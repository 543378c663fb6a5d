'use strict';

const { Detached } = require('./lib/detached.cjs');
const { IncompleteError, LockLostError, SidecarError } = require('./lib/errors.cjs');
const { LockSidecar } = require('./lib/sidecar.cjs');
const { Lock } = require('./lib/lock.cjs');
const { defaultSocket } = require('./lib/socket.cjs');

module.exports = { Detached, IncompleteError, Lock, LockLostError, LockSidecar, SidecarError, defaultSocket };
