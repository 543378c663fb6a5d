'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { SidecarError } = require('./errors.cjs');

const SYSTEM = '/run/locksidecar';
const NAME = 'locksidecar.sock';

/**
 * Where sidecar and clients meet when nobody says otherwise; the rule is in
 * docs/settings.md. The parameters are for tests.
 */
function defaultSocket(env = process.env, system = SYSTEM) {
  if (env.LOCKSIDECAR_SOCKET) {
    return env.LOCKSIDECAR_SOCKET;
  }
  if (usable(system)) {
    return path.join(system, NAME);
  }
  if (env.XDG_RUNTIME_DIR) {
    return path.join(env.XDG_RUNTIME_DIR, 'locksidecar', NAME);
  }
  const uid = process.getuid();
  const dir = path.join(env.TMPDIR || '/tmp', `locksidecar-${uid}`);
  checkOwner(dir, uid);
  return path.join(dir, NAME);
}

/** Whether there is a socket in dir that can be connected to, or one can be made. */
function usable(dir) {
  const { W_OK, X_OK } = fs.constants;
  const socket = access(path.join(dir, NAME), W_OK);
  if (socket !== 'ENOENT') {
    return socket === '';
  }
  const there = access(dir, W_OK | X_OK);
  return there === '' || (there === 'ENOENT' && access(path.dirname(dir), W_OK | X_OK) === '');
}

function access(file, mode) {
  try {
    fs.accessSync(file, mode);
    return '';
  } catch (err) {
    return err.code;
  }
}

/** Refuses a directory in a place where anybody can make it, if somebody else did. */
function checkOwner(dir, uid) {
  let st;
  try {
    st = fs.lstatSync(dir, { throwIfNoEntry: false });
  } catch (err) {
    throw new SidecarError('NO_SIDECAR', `find the socket: ${err.message}`, { cause: err });
  }
  if (st && !(st.isDirectory() && st.uid === uid && (st.mode & 0o022) === 0)) {
    const mode = (st.mode & 0o7777).toString(8);
    throw new SidecarError(
      'NO_SIDECAR',
      `${dir} is not a directory of this user's alone (uid ${st.uid}, mode ${mode}); set LOCKSIDECAR_SOCKET`,
    );
  }
}

module.exports = { defaultSocket };
