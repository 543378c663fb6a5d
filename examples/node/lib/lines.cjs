'use strict';

const net = require('node:net');
const { SidecarError, fromConnection } = require('./errors.cjs');

/**
 * Connects to the sidecar, and speaks lines of JSON. `line` gets each that comes;
 * `ended` is called once, with a SidecarError, however the connection ends.
 */
function connect(path, line, ended) {
  const socket = net.connect({ path });
  let problem;
  let rest = '';
  socket.setEncoding('utf8').on('data', (chunk) => {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop();
    for (const text of lines) {
      if (problem) {
        return;
      }
      try {
        line(JSON.parse(text));
      } catch (err) {
        problem = new SidecarError('SIDECAR_GONE', `what answers at ${path} is no sidecar, or an older one than this client`, { cause: err });
        socket.destroy();
      }
    }
  });
  socket.on('error', (err) => { problem ??= fromConnection(path, err); });
  socket.on('close', () => ended(problem ?? fromConnection(path)));
  return socket;
}

module.exports = { connect };
